"""Copies of a file to a device by threads of C, which never wait for Python's interpreter.

``loader.h`` is the interface, ``library.py`` finds and declares the library. Where there is none,
as in a checkout that has not compiled it, ``zse.stream`` copies with threads of Python.
"""
