"""A process that ends with its parent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.deployed import until

CHILD = """
import signal, sys, time
from pacbayes_fl.federation.flower.parent import end_with_parent
end_with_parent(signal.SIGKILL)
print("ready", flush=True)
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
import time; time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels tell no process of its parent's end")
def test_a_child_in_a_session_of_its_own_ends_with_a_parent_that_is_killed() -> None:
    from tests.federation.flower.test_processes import alive

    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    until(lambda: not alive(child), 20.0)
