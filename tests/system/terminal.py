# SPDX-License-Identifier: Apache-2.0
"""A program on a terminal of its own, and what stands on its screen.

The terminal type is made on the spot (tic) and knows two things only: to clear the screen and to go to a
place. So these few lines understand everything that a curses program can send.
"""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios

from harness import Skip, until

TYPE = r"tkrtest|two capabilities, cols#80, lines#24, clear=\E[H\E[J, cup=\E[%i%p1%d;%p2%dH, cr=\r, cud1=\n," + "\n"
TOKEN = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[H\x1b\[J|[\s\S]")


class Terminal:
    """`with Terminal(scratch, [program, ...]) as t`: t.press("c"); t.until("word"); t.text()"""

    def __init__(self, scratch, command, rows=24, columns=80):
        if not shutil.which("tic"):
            raise Skip("tic is not installed (ncurses-bin)")
        source = scratch.file("tkrtest.ti", TYPE)
        subprocess.run(["tic", "-x", "-o", scratch.path, source], check=True, stderr=subprocess.DEVNULL)
        self.rows, self.columns = rows, columns
        self.y = self.x = 0
        self.cells = [[" "] * columns for _ in range(rows)]
        self.rest = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execve(command[0], command, {**os.environ, "TERM": "tkrtest", "TERMINFO": scratch.path, "LC_ALL": "C"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.cells = [(row + [" "] * columns)[:columns] for row in self.cells + [[]] * rows][:rows]
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def put(self, char):
        if char == "\r":
            self.x = 0
        elif char == "\n":
            self.y = min(self.y + 1, self.rows - 1)
        elif char == "\b":
            self.x = max(self.x - 1, 0)
        elif char >= " " and self.y < self.rows and self.x < self.columns:
            self.cells[self.y][self.x] = char
            self.x += 1

    def take(self):
        """Reads what came, if anything."""
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # its other end is closed
                return
            if not data:
                return
            text = self.rest + data.decode("utf-8", "replace")
            cut = text.rfind("\x1b")
            cut = cut if cut >= 0 and not re.match(r"\x1b\[(\d+;\d+H|H\x1b|J)", text[cut:]) else len(text)
            text, self.rest = text[:cut], text[cut:]
            for match in TOKEN.finditer(text):
                if match.group(1):
                    self.y, self.x = int(match.group(1)) - 1, int(match.group(2)) - 1
                elif len(match.group(0)) > 1:
                    self.cells = [[" "] * self.columns for _ in range(self.rows)]
                    self.y = self.x = 0
                else:
                    self.put(match.group(0))

    def text(self):
        self.take()
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def until(self, what):
        """The screen, once it holds what (a word or a pattern)."""
        try:
            return until(what, lambda: re.search(what, self.text()) and self.text())
        except AssertionError as failure:
            raise AssertionError("%s; the screen:\n%s" % (failure, self.text())) from failure

    def end(self):
        """Waits for the program's end: its exit code."""
        def ended():
            self.take()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (status,) if pid else None
        status = until("the end of the program", ended)[0]
        self.pid = 0
        return os.waitstatus_to_exitcode(status)
