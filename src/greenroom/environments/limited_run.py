"""Run `submission.py` of the working directory with limits: limited_run.py <bytes of memory> <bytes of output> <seconds>

A script that runs in the submission's own process, before it: limits set there need no code between fork and exec,
which would be unsafe beside other threads. It runs isolated (`python -I`), with the standard library alone.

The submission has no network: a seccomp filter refuses every new socket (pairs of connected ones, which event loops
need, are fine) and io_uring, which can make sockets too. It also refuses to leave the process group, which is what ends
together with the submission. The kernel keeps the filter for everything that the submission starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import runpy
import signal
import struct
import sys

CANNOT_LIMIT = 125
"""Exit code when a limit cannot be set: nothing of the submission has run."""
COMPLAINT = "limits cannot be set: "
"""What the reason on standard error then begins with."""

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 1, 22, 38, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_OFFSET, _MACHINE_OFFSET = 0, 4
_IO_URING_SETUP = 425
_X32_CALLS = 0x40000000
# platform.machine() → the kernel's number of the machine, and of the calls socket, setsid and setpgid: linux/audit.h,
# asm/unistd.h.
_MACHINES = {"x86_64": (0xC000003E, (41, 112, 109)), "aarch64": (0xC00000B7, (198, 157, 154))}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_calls() -> None:
    """Refuse new sockets and leaving the process group to this process and to all that it starts, for good.

    Raises:
        OSError: the kernel or the processor does not support it.
    """
    if platform.machine() not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is known for {platform.machine()}")
    machine, calls = _MACHINES[platform.machine()]
    refused = [(_JUMP_IF_EQUAL, call) for call in (*calls, _IO_URING_SETUP)] + [(_JUMP_IF_AT_LEAST, _X32_CALLS)]
    # (operation, jump when true, jump when false, operand); a jump counts the instructions that it skips.
    instructions = [
        (_LOAD, 0, 0, _MACHINE_OFFSET),
        (_JUMP_IF_EQUAL, 0, len(refused) + 2, machine),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        *((operation, len(refused) - at, 0, operand) for at, (operation, operand) in enumerate(refused)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(instructions), code)
    for option, first, second in (
        # Whoever started this keeps the time; when it is killed, nobody does.
        (_PR_SET_PDEATHSIG, signal.SIGKILL, None),
        (_PR_SET_NO_NEW_PRIVS, 1, None),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program)),
    ):
        if libc.prctl(option, ctypes.c_ulong(first), second, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    """Set the limits, then run the submission as the main program."""
    memory, output, seconds = map(int, sys.argv[1:])
    try:
        refuse_calls()
        resource.setrlimit(resource.RLIMIT_FSIZE, (output, output))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (OSError, ValueError) as error:
        print(f"{COMPLAINT}{error}", file=sys.stderr, flush=True)
        os._exit(CANNOT_LIMIT)
    sys.argv = ["submission.py"]
    runpy.run_path("submission.py", run_name="__main__")


if __name__ == "__main__":
    main()
