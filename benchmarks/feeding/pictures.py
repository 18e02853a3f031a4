"""A dataset whose samples take CPU time to prepare, which is noted."""

from __future__ import annotations

import os
import time

import numpy

SIDE, CROP, CLASSES = 192, 32, 10


class CostlyPictures:
    """Pictures that are drawn, blurred and cropped at random: 5 ms of CPU each, more with longer sides."""

    def __init__(self, size: int, log: str, side: int = SIDE) -> None:
        self._size = size
        self._side = side
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[numpy.ndarray, int]:
        started = time.thread_time()
        label = index % CLASSES
        side = self._side
        wave = numpy.sin(numpy.arange(side) * (label + 1) / 7.0)
        picture = numpy.outer(wave, wave) + numpy.random.standard_normal((3, side, side))
        spectrum = numpy.fft.rfft2(picture)
        spectrum *= numpy.exp(-numpy.arange(side // 2 + 1) / 40.0)
        picture = numpy.fft.irfft2(spectrum)
        top, left = numpy.random.randint(0, side - CROP, 2)
        sample = picture[:, top : top + CROP, left : left + CROP].astype(numpy.float32)
        os.write(self._log, b"%d %.6f\n" % (index, time.thread_time() - started))
        return sample, label


def costly(size: int, log: str, side: int = SIDE) -> CostlyPictures:
    """The dataset."""
    return CostlyPictures(size, log, side)
