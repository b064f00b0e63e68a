"""Files of every kind become blocks; damaged and hostile ones are refused, and harm nothing."""

from __future__ import annotations

import contextlib
import random
import zipfile
from io import BytesIO

import pytest

from zse.errors import MissingDependencyError, RefusedError
from zse.serve.documents import reading, word_files
from zse.serve.documents.parsing import decoded, kind_of, parse
from zse.serve.documents.reading import read_document
from zse.serve.documents.web_pages import html_blocks
from zse.serve.documents.word_files import docx_blocks

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def paragraph(text, style="", before=""):
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}{before}<w:r><w:t>{text}</w:t></w:r></w:p>"


def docx(body, head=""):
    text = (
        f'<?xml version="1.0"?>{head}<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>'
    )
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", text)
    return file.getvalue()


def pdf(*pages):
    """Return a PDF with one line of text a page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    data, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    tail = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return data + f"{tail}startxref\n{len(data)}\n%%EOF".encode()


def test_a_pdf_is_read_in_a_child_with_its_pages():
    pytest.importorskip("pypdf")
    blocks = read_document("pdf", pdf("The first page.", "The second page."))
    assert [(one.page, one.text) for one in blocks] == [
        (1, "The first page."),
        (2, "The second page."),
    ]


def test_damaged_pdfs_are_refused():
    pytest.importorskip("pypdf")
    chance, whole = random.Random(5), pdf("Some text.")
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 30)):
            data[chance.randrange(8, len(data))] = chance.randrange(256)
        with contextlib.suppress(RefusedError):
            parse("pdf", bytes(data[: chance.randrange(20, len(data))]))
    with pytest.raises(RefusedError, match="cannot be read"):
        read_document("pdf", b"%PDF-1.7\nnothing")


def test_without_pypdf_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
    with pytest.raises(MissingDependencyError) as caught:
        parse("pdf", b"%PDF-1.7")
    assert "rag" in caught.value.hint


def test_docx_has_headings_tables_and_pages():
    table = (
        f"<w:tbl><w:tr><w:tc>{paragraph('a')}</w:tc><w:tc>{paragraph('b')}</w:tc></w:tr></w:tbl>"
    )
    turned = "<w:r><w:lastRenderedPageBreak/></w:r>"
    body = paragraph("Top", "Heading1") + paragraph("One &amp; two") + table
    body += paragraph("Sub", "Heading2", turned) + paragraph("Three")
    found = [(one.page, one.heading, one.text) for one in read_document("docx", docx(body))]
    assert found == [(1, "Top", "One & two"), (1, "Top", "a | b"), (2, "Top > Sub", "Three")]


def test_a_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(word_files, "MAX_PART_BYTES", 1 << 20)
    with pytest.raises(RefusedError, match="unpacks to more than 1 MiB"):
        docx_blocks(docx(paragraph("x" * (3 << 20))))


@pytest.mark.parametrize(
    "head",
    [
        '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>',
        '<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE d SYSTEM "http://localhost/x.dtd">',
    ],
)
def test_entities_of_docx_are_refused(head):
    with pytest.raises(RefusedError, match="document type"):
        docx_blocks(docx(paragraph("x"), head))


@pytest.mark.parametrize("data", [b"PK\x03\x04", docx("")[:-30], docx("<w:p>"), b"PK\x03\x04" * 99])
def test_damaged_docx_is_refused(data):
    with pytest.raises(RefusedError):
        docx_blocks(data)
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("other.xml", "")
    with pytest.raises(RefusedError, match="no DOCX"):
        docx_blocks(file.getvalue())


def test_html_is_what_a_reader_sees():
    page = """<head><title>no</title></head><nav>no</nav><h1>Top</h1><p>One <b>two</b>&amp;
    three<script>no()</script></p><ul><li>a<li>b</ul><h2>Sub</h2><pre>  x
  y</pre><table><tr><td>1</td><td>2</td></tr></table>"""
    assert [(one.heading, one.text) for one in html_blocks(page)] == [
        ("Top", "One two& three"),
        ("Top", "- a\n- b"),
        ("Top > Sub", "  x\n  y"),
        ("Top > Sub", "1 | 2"),
    ]


def test_a_kind_is_what_name_and_bytes_agree_on():
    assert kind_of("a.PDF", b"%PDF-1.4") == "pdf"
    assert kind_of("README", b"text") == "text"
    for name, data in (
        ("a.txt", b"%PDF-1.4"),
        ("a.pdf", b"text"),
        ("a.exe", b"MZ"),
        ("a.md", b"PK\x03\x04"),
    ):
        with pytest.raises(RefusedError):
            kind_of(name, data)


def test_text_is_decoded_as_it_was_written():
    assert decoded("ä€".encode("utf-8-sig")) == "ä€"
    assert decoded("ä€".encode("utf-16")) == "ä€"
    assert decoded("ä€".encode("cp1252")) == "ä€"
    with pytest.raises(RefusedError):
        decoded(b"\x7fELF\x00")


def test_a_child_can_open_no_file_but_libraries_and_write_none(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = f"""
import sys, json, os, resource
sys.path[:] = json.loads(sys.argv[1])
from zse.serve.documents.child import give_up_rights, _libc, _SYS_LANDLOCK
import ctypes, socket
has_landlock = _libc.syscall(_SYS_LANDLOCK, None, ctypes.c_size_t(0), 1) >= 1
give_up_rights()
opened = []
for path, mode in (({str(secret)!r}, "r"), ({str(secret)!r}, "w")):
    try:
        open(path, mode); opened.append(path)
    except OSError: pass
if not has_landlock: opened = []
memory = 0
try: x = bytearray(2 << 30); memory = 1
except MemoryError: pass
print(json.dumps({{"blocks": [[json.dumps([opened, memory, resource.getrlimit(resource.RLIMIT_CPU)[0]]), None, ""]]}}))
"""
    monkeypatch.setattr(reading, "_CODE", code)
    (block,) = read_document("html", b"")
    assert block.text == "[[], 0, 30]"
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("code", ["", "print('[')", "import os; os.kill(os.getpid(), 9)"])
def test_what_a_child_says_is_checked(monkeypatch, code):
    monkeypatch.setattr(reading, "_CODE", code)
    with pytest.raises(RefusedError, match="was ended"):
        read_document("html", b"")


def test_a_child_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(reading, "_CODE", "import time; time.sleep(60)")
    with pytest.raises(RefusedError, match="within"):
        read_document("html", b"", timeout_seconds=0.2)


@pytest.mark.parametrize("marks", ["#", "# ", "# #", "#\t"])
def test_a_line_of_marks_and_spaces_is_read_in_one_pass(marks):
    """One that a pattern divides in all ways would keep the process from anything else for days."""
    text = "# Install\n" + marks + " " * 50_000 + "x" * 401 + " #" * 50_000 + "!\n\nfirst"
    (line, first) = parse("markdown", text.encode())
    assert (line.heading, first.text, first.heading) == ("Install", "first", "Install")


@pytest.mark.parametrize(
    ("line", "heading"),
    [
        ("# Install ##", "Install"),
        ("###\tLinux  #\t", "Linux"),
        ("# C# and F#", "C# and F"),
        ("#no", None),
        ("####### seven", None),
        ("# #", None),
        ("#   ", None),
        ("# " + "x" * 400, "x" * 300),
        ("# " + "x" * 401, None),
    ],
)
def test_what_is_a_heading_and_what_is_not(line, heading):
    blocks = parse("markdown", f"{line}\n\ntext".encode())
    assert blocks[-1].heading == (heading or "")
    assert len(blocks) == (1 if heading else 2)
