"""`python elsewhere.py MODULE WORDS` runs a module as on a system where only Python is: without our
native part and the packages that it needs, and without what Windows lacks."""

import contextlib
import os
import runpy
import shutil  # noqa: F401
import signal
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import webbrowser  # noqa: F401

NATIVE = ("numpy", "cffi", "_cffi_backend", "pycparser", "elftools", "requests")
UNIX = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses")
OF_OS = (
    "fork", "forkpty", "uname", "pread", "preadv", "pwrite", "pwritev", "getuid", "geteuid",
    "getgid", "getegid", "getpgid", "getpgrp", "getsid", "setsid", "killpg", "mkfifo", "mknod",
    "openpty", "sched_getaffinity", "sched_setaffinity", "sched_yield", "sysconf", "posix_spawn",
    "posix_spawnp", "register_at_fork", "chown", "chroot", "fchmod", "fchown", "statvfs",
    "fstatvfs", "getloadavg", "nice", "wait3", "wait4", "WNOHANG", "WIFSIGNALED", "WEXITSTATUS",
    "set_blocking", "get_blocking", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW",
    "O_SYNC", "O_TMPFILE", "memfd_create", "sendfile", "ctermid", "ttyname", "sync", "fdatasync",
    "posix_fadvise", "posix_fallocate", "eventfd", "pidfd_open", "getxattr", "setpriority",
    "environb", "fchdir",
)  # fmt: skip
OF_SIGNAL = (
    "SIGKILL", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGCHLD",
    "SIGSTOP", "SIGCONT", "SIGTSTP", "SIGWINCH", "setitimer", "getitimer", "alarm", "pause",
    "pthread_kill", "pthread_sigmask", "sigpending", "sigwait", "sigwaitinfo", "sigtimedwait",
    "siginterrupt", "SIG_BLOCK",
)  # fmt: skip


class _Missing:
    """Finds none of them, wherever they are installed."""

    def find_spec(self, name, _path=None, _target=None):
        if name.partition(".")[0] in (*NATIVE, *UNIX):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become() -> None:
    """Makes this process such a system."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in (*NATIVE, *UNIX):
            del sys.modules[name]
    sys.modules["ggml_py._ggml"] = None
    sys.meta_path.insert(0, _Missing())
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            with contextlib.suppress(AttributeError):
                delattr(module, name)
    os.O_BINARY = 0


if __name__ == "__main__":
    become()
    sys.argv = sys.argv[1:]
    sys.path.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
