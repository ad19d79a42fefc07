"""How long the machine keeps a process from running: what a measured time may have in it that is nobody's doing."""

from __future__ import annotations

import threading
import time


class Stalls:
    """Measures, as a context, how long this process is kept from running."""

    _SLEEP_S = 0.02

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def _measure(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            time.sleep(self._SLEEP_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began - self._SLEEP_S)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()
