"""The conversation with a scripted backend; the command on tiny is in the slow test below."""

import io
import json
import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from zse.cli.chat_backends import ServerBackend, ServerError
from zse.cli.chat_session import Session
from zse.cli.saved_chats import SavedChats
from zse.errors import ContextLengthError
from zse.options import load_options


class Echo:
    """Answers with what it was sent; can be told to fail or to be interrupted."""

    def __init__(self) -> None:
        self.seen = []
        self.given = []
        self.closed = 0

    def answer(self, messages, given):
        self.given.append(dict(given))
        self.seen.append([dict(message) for message in messages])
        try:
            text = messages[-1]["content"]
            if text == "too long":
                raise ContextLengthError("it is too long")
            yield "you said "
            if text == "interrupt":
                raise KeyboardInterrupt
            if text == "break":
                raise ServerError("the answer broke off", hint="Ask once more.")
            yield text
        finally:
            self.closed += 1


@pytest.fixture
def talk(capsys, tmp_path):
    """Run lines through a session; return the backend, standard output and the messages."""

    def run(*lines, **options):
        backend = Echo()
        kept = SavedChats(tmp_path / "kept")
        session = Session(backend, saved=kept, values={}, is_terminal=False, **options)
        session.run(io.StringIO("".join(line + "\n" for line in lines)))
        return backend, capsys.readouterr(), session.messages

    return run


def test_answers_are_printed_and_become_history(talk):
    backend, output, _ = talk("one", "", "two")
    assert output.out == "you said one\nyou said two\n"
    assert [m["content"] for m in backend.seen[1]] == ["one", "you said one", "two"]


def test_the_system_message_comes_first_and_survives_a_reset(talk):
    backend, _, messages = talk("one", "/reset", "two", system="be brief")
    assert backend.seen[1] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "two"},
    ]
    assert len(messages) == 3


def test_a_new_system_message_begins_anew(talk):
    backend, _, _ = talk("one", "/system speak Latin", "two", "/system", "three")
    assert backend.seen[1][0] == {"role": "system", "content": "speak Latin"}
    assert backend.seen[2] == [{"role": "user", "content": "three"}]


def test_exit_ends_before_the_rest(talk):
    backend, _, _ = talk("one", "/exit", "two")
    assert len(backend.seen) == 1


def test_help_lists_the_commands_and_unknown_ones_are_named(talk):
    backend, output, _ = talk("/help", "/dance", "/save")
    assert "/reset" in output.out
    assert "'/dance' is no command" in output.err
    assert "'/save' is no command" in output.err
    assert not backend.seen


def test_a_stopped_answer_stays_in_the_history_as_far_as_it_came(talk):
    backend, output, messages = talk("interrupt")
    assert output.out == "you said  [stopped]\n"
    assert messages[-1] == {"role": "assistant", "content": "you said "}
    assert backend.closed == 1


def test_save_writes_the_conversation_as_json(talk, tmp_path):
    path = tmp_path / "talk.json"
    _, output, messages = talk("grüße", f"/save {path}")
    assert json.loads(path.read_text()) == messages
    assert "Saved" in output.err
    assert [file.name for file in tmp_path.iterdir()] == ["talk.json"]


def test_save_to_nowhere_says_so_and_goes_on(talk, tmp_path):
    _, output, _ = talk(f"/save {tmp_path}/none/talk.json", "one")
    assert "cannot write" in output.err
    assert "you said one" in output.out


def test_without_a_terminal_an_error_ends_the_command(talk):
    with pytest.raises(ContextLengthError):
        talk("too long")


@pytest.fixture
def typed(monkeypatch, tmp_path):
    """A session at a terminal at which these lines were typed, and then Ctrl-D."""

    def run(*lines):
        waiting = list(lines)

        def read(_prompt):
            if not waiting:
                raise EOFError
            return waiting.pop(0)

        monkeypatch.setattr("zse.cli.chat_session._ask_terminal", read)
        session = Session(Echo(), saved=SavedChats(tmp_path), values={}, is_terminal=True)
        session.run(io.StringIO())
        return session

    return run


def test_in_a_terminal_a_failed_question_is_forgotten(typed, capsys):
    session = typed("too long", "one")
    assert "it is too long" in capsys.readouterr().err
    assert [m["content"] for m in session.messages] == ["one", "you said one"]


def test_an_error_in_mid_answer_begins_on_a_line_of_its_own(typed, capsys):
    typed("break")
    shown = capsys.readouterr()
    assert shown.out.startswith("you said \n"), "the half answer's line is ended"
    assert "hint: Ask once more." in shown.err


@pytest.mark.parametrize(
    ("status", "sent", "said", "hint"),
    [
        (401, b'{"error": {"message": "No API key"}}', "answered 401: No API key", "--api-key"),
        (200, b"", "broke off", "zse serve MODEL"),
        (200, b'data: {"choices": [{"delta": null}]}\n\n', "broke off", "zse serve MODEL"),
        (200, b"data: {nothing\n\n", "sent no chat completion", ""),
        (200, b'data: {"choices": 1}\n\n', "sent no chat completion", ""),
        (200, b'data: {"error": "too hot"}\n\n', "stopped the answer: too hot", ""),
        (200, b'data: {"error": {"message": "too hot"}}\n\n', "answer: too hot", ""),
    ],
)
def test_each_way_in_which_a_server_fails_has_its_next_step(status, sent, said, hint):
    with given_answer(status, sent) as url:
        backend = ServerBackend(url, model="default", api_key="unused")
        with pytest.raises(ServerError, match=said) as caught:
            list(backend.answer([{"role": "user", "content": "hi"}], {}))
        backend.close()
    assert hint in caught.value.hint


@pytest.mark.parametrize("space", ["", " "])
def test_the_space_behind_a_field_of_an_event_may_be_left_out(space):
    sent = f'event: x\ndata:{space}{{"choices": [{{"delta": {{"content": "hi"}}}}]}}\n\n'
    with given_answer(200, sent.encode()) as url:
        backend = ServerBackend(url, model="default", api_key="unused")
        with closing(backend.answer([{"role": "user", "content": "hi"}], {})) as answer:
            assert next(answer) == "hi"
        backend.close()


def test_a_server_that_is_not_there_is_to_be_started():
    with socket.create_server(("127.0.0.1", 0)) as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
    backend = ServerBackend(url, model="default", api_key="unused")
    with pytest.raises(ServerError, match="nobody answers at") as caught:
        list(backend.answer([{"role": "user", "content": "hi"}], {}))
    backend.close()
    assert "zse serve MODEL" in caught.value.hint


@contextmanager
def given_answer(status, sent):
    """Serve one request with a status and the first of more bytes than come."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status)
            self.send_header("content-length", str(len(sent) + (100 if status == 200 else 0)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_):
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        thread.join()


@pytest.mark.slow
def test_a_model_that_is_converted_first_tells_how_far_it_is(tmp_path, monkeypatch):
    from zse.cli.chat_backends import LocalBackend
    from zse.models.builtin import builtin_checkpoint

    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path))
    told = []
    LocalBackend(
        str(builtin_checkpoint("tiny")),
        load_options(device="cpu", threads=1, max_context=64),
        progress=lambda *values: told.append(values),
    ).close()
    assert {stage for stage, _, _ in told} == {"convert"}
    shares = [done_bytes / total_bytes for _, done_bytes, total_bytes in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye", "exit", "quit", "Exit"])
def test_the_usual_words_leave(talk, word):
    backend, _, _ = talk("one", word, "two")
    assert len(backend.seen) == 1


def test_a_kept_conversation_goes_on(talk):
    talk("one", "/save first", system="be brief")
    backend, output, messages = talk("/saved", "/load first", "two")
    assert output.out.startswith("first\n")
    assert backend.seen[0] == [*messages[:3], {"role": "user", "content": "two"}]
    assert messages[0] == {"role": "system", "content": "be brief"}


def test_the_file_of_a_conversation_is_for_its_owner(talk, tmp_path):
    talk("one", "/save first")
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "kept/first.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    ["[", "{}", "[1]", '[{"role": "root", "content": ""}]', '[{"role": "user"}]', "[" * 9999],
)
def test_what_is_no_conversation_is_not_gone_on_with(talk, tmp_path, text):
    path = tmp_path / "it.json"
    path.write_text(text)
    _, output, messages = talk("one", f"/load {path}")
    assert "is no conversation" in output.err
    assert len(messages) == 2


@pytest.mark.parametrize("name", ["../x", "a b", ".x", "x" * 65])
def test_a_name_stays_in_its_folder(talk, tmp_path, name):
    talk("one", f"/save {name}")
    assert not (tmp_path / "kept").exists()


def test_a_message_is_asked_again(talk):
    backend, _, messages = talk("/retry", "one", "/retry")
    assert [m["content"] for m in messages] == ["one", "you said one"]
    assert backend.seen == [[{"role": "user", "content": "one"}]] * 2


def test_a_file_goes_with_the_next_message_only(talk, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n")
    backend, _, _ = talk(f"/file {path}", "what is in it?", "thanks")
    asked = [seen[-1]["content"] for seen in backend.seen]
    assert asked == ["notes.txt:\n```\nbuy milk\n```\n\nwhat is in it?", "thanks"]


def test_a_file_that_is_no_text_is_refused(talk, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    backend, output, _ = talk(f"/file {tmp_path}/bytes", f"/file {tmp_path}/none", "one")
    assert "is no text in UTF-8" in output.err
    assert "cannot read" in output.err
    assert backend.seen[0][-1]["content"] == "one"


def test_how_answers_are_made_can_be_set(talk):
    lines = ("/set temperature 0.5", "one", "/set temperature", "two")
    backend, output, _ = talk("/set dance 1", "/set seed x", "/set top_p 2", *lines)
    assert backend.given == [{"temperature": 0.5}, {}]
    for words in ("'dance' cannot be set", "'x' is no seed", "'2' is no top_p"):
        assert words in output.err


def test_a_message_may_have_several_lines(monkeypatch, tmp_path):
    lines = iter(['"""first', "second", 'third"""', "/exit"])
    monkeypatch.setattr("zse.cli.chat_session._ask_terminal", lambda _prompt: next(lines))
    backend = Echo()
    Session(backend, saved=SavedChats(tmp_path), values={}, is_terminal=True).run(io.StringIO())
    assert backend.seen[0][-1]["content"] == "first\nsecond\nthird"
