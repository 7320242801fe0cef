"""The bytes that a tensor shows: overlap and cover, in bytes, so that `view(dtype)` is a view like any other."""
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .cached import cached_property
from .extents import is_extent

EXACT_LIMIT = 1 << 16     # elements: up to here ask which bytes, beyond it ask which interval (a conservative answer)


@dataclass(frozen=True)
class ByteRegion:
    """Where a tensor lies in its storage. `stride` is in bytes, 0 where the size is 1, so equal regions compare equal."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int

    @cached_property
    def numel(self) -> int:
        return math.prod(self.size)

    @cached_property
    def counted(self) -> bool:
        """Are there few elements, and is it known for all calls which bytes they are?"""
        return not any(map(is_extent, (self.offset, *self.size, *self.stride))) and self.numel <= EXACT_LIMIT

    @cached_property
    def end(self) -> int:
        if not self.numel:
            return self.offset
        return self.offset + sum((n - 1) * s for n, s in zip(self.size, self.stride)) + self.itemsize

    @cached_property
    def dense(self) -> bool:
        """Fills [offset, end) without holes and without meeting itself."""
        return self.numel * self.itemsize == self.end - self.offset and not self.overlaps_itself

    @cached_property
    def overlaps_itself(self) -> bool:
        """Two elements share bytes (True when unsure)."""
        if not self.numel:
            return False
        reach = self.itemsize
        for stride, n in sorted((s, n) for n, s in zip(self.size, self.stride) if n > 1):
            if stride < reach:
                return not self.counted or len(_addresses(self)) != self.numel * self.itemsize
            reach = stride * (n - 1) + reach
        return False


def byte_region(offset: int, shape: tuple, stride: tuple, itemsize: int) -> ByteRegion:
    """Region of a tensor whose offset and strides are given in elements."""
    return ByteRegion(offset * itemsize, tuple(shape),
                      tuple(0 if n == 1 else s * itemsize for n, s in zip(shape, stride)), itemsize)


@lru_cache(1 << 12)
def _addresses(region: ByteRegion) -> np.ndarray:
    first = np.array([region.offset])
    for n, s in zip(region.size, region.stride):
        first = (first[:, None] + np.arange(n) * s).ravel()
    return np.unique((first[:, None] + np.arange(region.itemsize)).ravel())


def apart_modulo(m: int, first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Can no number of one interval [start, end) be, modulo m, a number of the other?"""
    between = (second[0] - first[0]) % m
    return between >= first[1] - first[0] and between + second[1] - second[0] <= m


def _apart_by_stride(a: ByteRegion, b: ByteRegion) -> bool:
    """Column slices of one array: modulo the stride of its rows they lie side by side."""
    def within(r: ByteRegion, m: int) -> tuple[int, int]:
        return r.offset, r.offset + sum((n - 1) * s for n, s in zip(r.size, r.stride) if s % m) + r.itemsize
    return any(apart_modulo(m, within(a, m), within(b, m)) for m in {*a.stride, *b.stride} if m)


@lru_cache(1 << 14)
def _meet(a: ByteRegion, b: ByteRegion) -> bool:
    if _apart_by_stride(a, b):
        return False
    if not (a.counted and b.counted):
        return True
    return bool(np.intersect1d(_addresses(a), _addresses(b), assume_unique=True).size)


def overlaps(a: ByteRegion, b: ByteRegion) -> bool:
    """Do they share a byte? (True when unsure.)"""
    if not a.numel or not b.numel or a.end <= b.offset or b.end <= a.offset:
        return False
    return a.dense and b.dense or _meet(a, b)


def covers(a: ByteRegion, b: ByteRegion) -> bool:
    """Is every byte of b a byte of a? (False when unsure.)"""
    if not b.numel:
        return True
    if not a.numel or a.offset > b.offset or a.end < b.end:
        return False
    if a == b or a.dense:
        return True
    return (a.counted and b.counted
            and bool(np.isin(_addresses(b), _addresses(a), assume_unique=True).all()))
