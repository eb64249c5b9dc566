"""ProxyCommand: a process whose standard input and output are the connection."""

from __future__ import annotations

import socket
import subprocess

from hostenv.errors import UnreachableError


class ProxyProcess:
    """A started ProxyCommand; ``socket`` is the connection that it made."""

    def __init__(self, name: str, command: str) -> None:
        self.socket, theirs = socket.socketpair()
        try:
            # ssh_config(5): the command is run with the user's shell, by exec. It comes from the user's own
            # SSH configuration, never from a spec.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self.socket.close()
            raise UnreachableError(f"{name}: ProxyCommand {command!r}: {error.strerror}") from error
        finally:
            theirs.close()

    def close(self) -> None:
        """End the process."""
        self.socket.close()
        self._process.terminate()
        self._process.wait()
