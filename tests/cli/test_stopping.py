from __future__ import annotations

import os
import signal
import threading

import pytest

from zse.cli.stopping import clean_stop


def test_a_signal_lets_the_block_clean_up_and_a_second_one_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def stopped() -> None:
        with clean_stop():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Event().wait(30)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGHUP)
                cleaned.append(True)

    with pytest.raises(SystemExit) as caught:
        stopped()
    assert caught.value.code == 128 + signal.SIGTERM
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_nothing_is_installed() -> None:
    seen = []

    def work() -> None:
        with clean_stop():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
