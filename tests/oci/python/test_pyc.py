from __future__ import annotations

import importlib.util
import marshal
import sys

from zse.oci.layout.tar import file_of_bytes
from zse.oci.python.pyc import PycCompiler, with_byte_code

SOURCE = b"NAMES = {'b', 'a'}\n\ndef answer():\n    return 42 in {1, 2, 42}\n"
THIS_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_byte_code_is_never_compared_with_its_source():
    with PycCompiler([sys.executable]) as compiler:
        code = compiler.compile(SOURCE, "/opt/zse/x.py")
    assert code[:4] == importlib.util.MAGIC_NUMBER
    assert code[4:8] == b"\x01\x00\x00\x00"
    assert code[8:16] == importlib.util.source_hash(SOURCE)


def test_byte_code_names_the_path_in_the_image():
    with PycCompiler([sys.executable]) as compiler:
        code = compiler.compile(SOURCE, "/opt/zse/x.py")
    assert marshal.loads(code[16:]).co_filename == "/opt/zse/x.py"


def test_two_processes_write_the_same_byte_code():
    results = []
    for _ in range(2):
        with PycCompiler([sys.executable]) as compiler:
            compiler.compile(b"x = 1", "/other.py")
            results.append(compiler.compile(SOURCE, "/opt/zse/x.py"))
    assert results[0] == results[1]


def test_source_that_is_no_python_gets_no_byte_code():
    entries = [file_of_bytes("a/good.py", b"x = 1"), file_of_bytes("a/bad.py", b"{{ template }")]
    compiler = PycCompiler([sys.executable])
    paths = [entry.path for entry in with_byte_code(entries, compiler, image_python=THIS_PYTHON)]
    tag = THIS_PYTHON.replace(".", "")
    assert paths == ["a/good.py", f"a/__pycache__/good.cpython-{tag}.pyc", "a/bad.py"]
