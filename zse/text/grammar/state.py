"""A grammar, and how far one answer has come in it.

    begin -> [write masks -> a token is chosen -> advance] ... -> is_complete

An answer belongs to one thread at a time; a grammar is for any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


class Root:
    """A matcher at the start of a form, of which answers are copies.

    All copies share what they find out about texts, behind a lock of the library: they work one
    after the other. Those of another root work beside them. Where it becomes too much for one of
    them, the root is of no use any more.
    """

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.answers: WeakSet[GrammarState] = WeakSet()
        self.is_suspect = False
        """Whether a copy has failed since it was last tried out."""

    def is_sound(self) -> bool:
        if self.is_suspect:
            copy = self.matcher.deep_copy()
            copy.compute_bitmask()
            self.is_suspect = bool(copy.is_error())
        return not self.is_suspect


class Grammar:
    """A compiled grammar; each answer begins with a copy of it. For any thread.

    Args:
        matcher: llguidance's, at the start.
        new_matcher: Makes another one.
        most_roots: How many there are at the most, for answers that run together.
        tokenize: Returns tokens of bytes, not always those that a model would write.
        token_bytes: Returns the bytes of a token.
        starts_after: Texts of the answer behind which the form begins; none for its start.
        openers: Tokens that begin the part before the form, where an answer may leave it out.
        end_token_ids: Tokens that the model ends answers with.
    """

    def __init__(
        self,
        matcher: Any,
        *,
        new_matcher: Callable[[], Any],
        most_roots: int,
        tokenize: Callable[[bytes], list[int]],
        token_bytes: Callable[[int], bytes],
        starts_after: tuple[bytes, ...],
        openers: Collection[int],
        end_token_ids: Collection[int],
    ) -> None:
        self._new_matcher = new_matcher
        self._most_roots = most_roots
        self._roots: tuple[Root, ...] = (Root(matcher),)
        self._num_expected = 0
        self.tokenize = tokenize
        self.token_bytes = token_bytes
        self.starts_after = starts_after
        self.openers = openers
        self.longest_start = max(map(len, starts_after), default=0)
        self.end_token_ids = frozenset(end_token_ids)

    def expect(self, num_answers: int) -> bool:
        """Be ready for more answers, each with a root of its own while there are so many.

        It takes as long as compiling: call it before the engine waits for an answer to begin, and
        from one thread at a time.

        Returns:
            Whether roots were made.
        """
        self._num_expected += num_answers
        sound = [root for root in self._roots if root.is_sound()]
        wanted = self._num_expected + sum(len(root.answers) for root in sound)
        lacking = max(0, min(self._most_roots, max(1, wanted)) - len(sound))
        self._roots = (*sound, *(Root(self._new_matcher()) for _ in range(lacking)))
        return lacking > 0

    def trim(self) -> None:
        """Give up what no answer needs; as ``expect``, one at a time.

        Answers that were expected and have not begun by the next time are not waited for.
        """
        first, *others = self._roots
        idle = [root for root in others if not root.answers]
        given_up = set(idle[self._num_expected :])
        self._roots = (first, *(root for root in others if root not in given_up))
        self._num_expected = 0

    def begin(self) -> GrammarState:
        """Return the state of an answer that has no tokens yet."""
        self._num_expected = max(0, self._num_expected - 1)
        root = min(self._roots, key=lambda root: len(root.answers))
        state = GrammarState(self, root, root.matcher.deep_copy())
        root.answers.add(state)
        state.is_active = not self.starts_after or bool(self.openers)
        state.openers = self.openers
        return state


class GrammarState:
    """How far one answer has come. For one thread at a time."""

    def __init__(self, grammar: Grammar, root: Root, matcher: Any) -> None:
        self.grammar = grammar
        self.root = root
        self.matcher = matcher
        self.is_active = True
        """Whether the form has begun; before that anything may come but an end."""
        self.openers: Collection[int] = ()
        """Tokens that may come beside those of the form: only as the first of an answer."""
        self.error = ""
        """Why the form cannot be kept any more; empty while it can."""
        self._tail = b""
        self._forced: list[int] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the form is finished and leaves nothing to add."""
        return self.is_active and not self.error and bool(self.matcher.is_stopped())

    def copy(self) -> GrammarState:
        other = GrammarState(self.grammar, self.root, self.matcher.deep_copy())
        other.is_active, other.openers = self.is_active, self.openers
        other.error, other._tail = self.error, self._tail
        return other

    def advance(self, token_id: int) -> None:
        """Note the next token of the answer."""
        if self.error:
            return
        openers, self.openers, self._forced = self.openers, (), None
        if token_id in openers:
            self.is_active = False
        elif not self.is_active:
            self._look_for_start(token_id)
        elif not self.matcher.consume_token(token_id):
            self.error = self.matcher.get_error() or "a token that the grammar does not allow"
            self.root.is_suspect = True

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens that must come next, where the form leaves no choice."""
        if not self.is_active or self.openers or self.error or self.matcher.is_stopped():
            return ()
        tokens = self._forced_now()
        return tokens[: self.matcher.validate_tokens(tokens)] if tokens else ()

    def only_token(self) -> int | None:
        """Return the token whose mask is that of the next step, where the form forces bytes.

        The library asks our tokenizer for it, and keeps the answer: a mask that is computed after
        this call needs no interpreter, which threads of the library would wait for.
        """
        tokens = () if self.matcher.is_stopped() else self._forced_now()
        return tokens[0] if tokens else None

    def _forced_now(self) -> Sequence[int]:
        if self._forced is None:
            self._forced = self.matcher.compute_ff_tokens()
        return self._forced

    def _look_for_start(self, token_id: int) -> None:
        """Begin where the text before the form ends: nearly always with the end of a token.

        What follows it in the same token belongs to the form if it fits; else it is white space as
        a rule, and left out of account.
        """
        text = self._tail + self.grammar.token_bytes(token_id)
        ends = [place + len(s) for s in self.grammar.starts_after if (place := text.find(s)) >= 0]
        if not ends:
            self._tail = text[max(0, len(text) - self.grammar.longest_start + 1) :]
            return
        self.is_active = True
        if rest := text[min(ends) :].strip():
            self.matcher.try_consume_tokens(self.grammar.tokenize(rest))
