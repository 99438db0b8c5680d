"""What a process of ours sets for itself."""

from __future__ import annotations

import sys

from wrasse.runtime.signals import SWITCH_SECONDS, set_switch_interval


def test_threads_wait_for_the_interpreter_no_longer_than_a_statement_takes() -> None:
    usual = sys.getswitchinterval()
    try:
        set_switch_interval()
        assert abs(sys.getswitchinterval() - SWITCH_SECONDS) < 1e-6 < usual
    finally:
        sys.setswitchinterval(usual)
