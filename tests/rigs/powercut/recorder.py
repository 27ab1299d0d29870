"""The recorder: a process that is the disk, and writes down what is done to it and what was acknowledged meanwhile.

    python -m tests.rigs.powercut.recorder IMAGE RECORD DIRECTORY SOCKET

It serves the image as a file in the directory and appends to the record every write with its bytes, every flush, and
every message that comes over the socket. A message is answered when it is in the record, so a program that waits for
the answer has its acknowledgement before anything it does next; and what the kernel sent before is put down first, so
an acknowledgement never stands too early.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path

from tests.rigs.powercut.fuse import OneFile

WRITE, FLUSH, NOTE = 1, 2, 3
EVENT = struct.Struct("<BQI")
MESSAGE_BYTES_MAX = 1 << 16


class Recorder:
    """The disk, the record of it, and those who acknowledge."""

    def __init__(self, image: Path, record: Path, channel: socket.socket) -> None:
        size = image.stat().st_size
        self.memory = mmap.mmap(-1, size)
        with open(image, "rb") as file:
            file.readinto(self.memory)
        self.record = open(record, "wb", buffering=1 << 20)  # noqa: SIM115  # open as long as the process lives
        self.channel = channel
        self.file = OneFile(memoryview(self.memory), self._wrote, self._flushed)

    def _wrote(self, offset: int, data: bytes) -> None:
        self.record.write(EVENT.pack(WRITE, offset, len(data)))
        self.record.write(data)

    def _flushed(self) -> None:
        self.record.write(EVENT.pack(FLUSH, 0, 0))

    def serve(self) -> None:
        """Until the disk is unmounted."""
        disk, channel = self.file.descriptor, self.channel.fileno()
        os.set_blocking(disk, False)
        waiting = select.poll()
        waiting.register(disk, select.POLLIN)
        waiting.register(channel, select.POLLIN)
        while True:
            ready = dict(waiting.poll())
            if disk in ready:
                # A socket that is ready too waits until the kernel has nothing more to say.
                if not self.file.serve_one():
                    return
                continue
            if ready.get(channel, 0) & select.POLLIN:
                message = self.channel.recv(MESSAGE_BYTES_MAX)
                if message:
                    self.record.write(EVENT.pack(NOTE, 0, len(message)))
                    self.record.write(message)
                    self.channel.send(b"k")
                    continue
            waiting.unregister(channel)


def main(image: str, record: str, directory: str, channel: str) -> int:
    # Ctrl-C in a terminal goes to everyone; the disk has to stay until it is unmounted.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    recorder = Recorder(Path(image), Path(record), socket.socket(fileno=int(channel)))
    recorder.file.mount(Path(directory).parent.name, Path(directory))
    print("mounted", flush=True)
    recorder.serve()
    recorder.record.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
