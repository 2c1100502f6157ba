"""Calls that all ranks of a group make together: do they mean the same, and is everybody there?

Every function of this package opens with :class:`Call`. It gathers, from every rank, what the rank was called with and
how long its shard is, so that a rank that was called otherwise, or that raised an error, is named on every rank before
any data moves. If a rank does not take part at all, the others agree through the store of the default group on who is
missing.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

Group = dist.ProcessGroup | dist.DeviceMesh | None

all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.11 has the older name

NUMBERS = 4  # int64 words of a header that a function may use; then the length and checksum of the text, then the text
TEXT_BYTES = 368
HEADER_WORDS = NUMBERS + 2 + TEXT_BYTES // 8

LOOK_AROUND = timedelta(seconds=0.5)  # how often a waiting rank looks whether another has given up
ANSWER_WITHIN = 5.0  # seconds in which every living rank notices that another has given up: some ten times that long


def resolve(group: Group) -> dist.ProcessGroup:
    """The process group meant by ``group``: None is the world, and a one-dimensional DeviceMesh has one.

    Raises:
        RuntimeError: ``torch.distributed`` has not been initialised.
        ValueError: this process is not in the group, or the mesh has several dimensions.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("torch_patterns.distributed: call torch.distributed.init_process_group first")
    if isinstance(group, dist.DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"torch_patterns.distributed: name one dimension of the mesh, it has {group.ndim}")
        group = group.get_group()
    group = dist.group.WORLD if group is None else group
    if dist.get_rank(group) < 0:
        raise ValueError("torch_patterns.distributed: this process is not in the group")
    return group


def describe(x: Tensor) -> str:
    """What must be the same of a shard on every rank: all but its length and the number of its device."""
    gradient = ", requires_grad" if x.requires_grad and torch.is_grad_enabled() else ""
    shape = ", ".join(["n", *map(str, x.shape[1:])]) if x.dim() else ""
    return f"{str(x.dtype).removeprefix('torch.')}[{shape}] on {x.device.type}{gradient}"


def shards(name: str, **tensors: Tensor) -> dict[str, Tensor]:
    """The tensors by name; ValueError if one has no dimension to be sharded along."""
    for what, x in tensors.items():
        if x.dim() == 0:
            raise ValueError(f"{name}: {what} is a scalar; a shard has a dimension to be sharded along")
    return tensors


def _header_device(group: dist.ProcessGroup) -> torch.device:
    """Where headers are gathered: on the CPU if the group serves it, where nobody waits for a GPU."""
    kinds = {device.type for device in group._device_types}
    return torch.device("cpu") if "cpu" in kinds else torch.device("cuda", torch.cuda.current_device())


class Call:
    """One call that every rank of the group makes.

    The header is gathered while the caller goes on. :meth:`numbers` waits for it, and raises on every rank if the ranks
    disagree.

    Args:
        name: of the function.
        group: as for :func:`resolve`.
        prepare: checks this rank's arguments, by what they are and not by what they hold, and returns the shards by
            name. What it raises is raised on this rank once all have been told.
        numbers: up to NUMBERS integers that may differ from rank to rank; by default the lengths of the shards.
        options: must be the same on every rank.

    Raises:
        Exception: what ``prepare`` raised.
    """

    def __init__(
        self,
        name: str,
        group: Group,
        prepare: Callable[[], dict[str, Tensor]],
        *,
        numbers: Sequence[int] | None = None,
        **options,
    ):
        self.name = name
        self.group = resolve(group)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._numbers: list[list[int]] | None = None
        self._error: Exception | None = None
        try:
            self.shards = prepare()
            self._check_devices()
            text = self._text(options)
            numbers = [len(x) for x in self.shards.values()] if numbers is None else numbers
        except Exception as error:  # every other rank is to learn of it, whatever it is
            self._error, text, numbers = error, f"!{type(error).__name__}: {error}", ()
        self._work, self._headers = self._gather(text, numbers)
        if self._error is not None:
            self.numbers()

    def _check_devices(self) -> None:
        served = {device.type for device in self.group._device_types}
        for name, x in self.shards.items():
            if x.device.type not in served:
                raise RuntimeError(
                    f"{self.name}: {name} is on {x.device}, and the group serves {', '.join(sorted(served))}"
                )

    def _text(self, options: dict) -> str:
        parts = [f"{name}: {describe(x)}" for name, x in self.shards.items()]
        parts += [f"{name}={value!r}" for name, value in options.items()]
        return f"{self.name}({', '.join(parts)})"

    def _gather(self, text: str, numbers: Sequence[int]) -> tuple[dist.Work, Tensor]:
        device, encoded = _header_device(self.group), text.encode()
        words = [*numbers, *(0 for _ in range(NUMBERS - len(numbers))), len(encoded), zlib.crc32(encoded)]
        padded = encoded[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        words += [int.from_bytes(padded[i : i + 8], "little", signed=True) for i in range(0, TEXT_BYTES, 8)]
        mine = torch.tensor(words, dtype=torch.int64, device=device)
        every = torch.empty(self.size * HEADER_WORDS, dtype=torch.int64, device=device)
        with failures_named(self.name, self.group):
            return all_gather_single(every, mine, group=self.group, async_op=True), every

    def numbers(self) -> list[list[int]]:
        """The numbers of every rank, [rank][which]; waits for all ranks.

        Raises:
            Exception: whatever was wrong with this rank's arguments.
            RuntimeError: another rank raised, was called with other arguments, or did not take part; it is named.
        """
        if self._numbers is None:
            rows = _read(self._work, self._headers, self.name, self.group)
            rows = [rows[i : i + HEADER_WORDS] for i in range(0, len(rows), HEADER_WORDS)]
            self._check([self._decoded(row) for row in rows], [tuple(row[NUMBERS:]) for row in rows])
            self._numbers = [row[:NUMBERS] for row in rows]
        return self._numbers

    def lengths(self, which: int = 0) -> list[int]:
        """One of the numbers, of every rank."""
        return [row[which] for row in self.numbers()]

    @staticmethod
    def _decoded(row: list[int]) -> str:
        text = b"".join(word.to_bytes(8, "little", signed=True) for word in row[NUMBERS + 2 :])
        return text[: row[NUMBERS]].decode(errors="replace")

    def _check(self, texts: list[str], exact: list[tuple]) -> None:
        if self._error is not None:
            raise self._error
        raised = [f"rank {rank} raised {text[1:]}" for rank, text in enumerate(texts) if text.startswith("!")]
        if raised:
            raise RuntimeError(f"{self.name}: {'; '.join(raised)}")
        if len(set(exact)) > 1:
            said: dict[str, list[int]] = {}
            for rank, text in enumerate(texts):
                said.setdefault(text, []).append(rank)
            listed = "; ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in said.items())
            raise RuntimeError(f"{self.name}: the ranks were called with different arguments: {listed}")


def _read(work: dist.Work, headers: Tensor, name: str, group: dist.ProcessGroup) -> list[int]:
    """The gathered words on the host. On CUDA the copy runs beside the current stream, which has work to do."""
    if not headers.is_cuda:
        finish(work, headers, name, group)
        return headers.tolist()
    give_up = time.monotonic() + 0.8 * _timeout(group)  # at its time-out NCCL would end the process
    look = time.monotonic() + LOOK_AROUND.total_seconds()
    with failures_named(name, group):
        while not work.is_completed():
            if time.monotonic() > look:
                if _given_up(group) or time.monotonic() > give_up:
                    raise RuntimeError(f"no header within {0.8 * _timeout(group):g} s")
                look = time.monotonic() + LOOK_AROUND.total_seconds()
    with torch.cuda.stream(torch.cuda.Stream(headers.device)):
        work.wait()
        return headers.tolist()


def finish(work: dist.Work, result: Tensor, name: str, group: dist.ProcessGroup) -> None:
    """Waits for a collective: on CUDA the current stream does; on the CPU the host, looking round for failures."""
    with failures_named(name, group):
        if result.is_cuda:
            work.wait()
            return
        while not work.is_completed():
            try:
                work.wait(LOOK_AROUND)
            except RuntimeError as error:
                if work.is_completed():
                    break  # by now, or by its own error, which the last wait raises
                if "timed out" not in str(error).lower():
                    raise
                if _given_up(group):
                    raise RuntimeError("another rank gave up") from None
        work.wait()


class failures_named:
    """Turns the failure of a collective into an error that names the ranks that did not take part."""

    def __init__(self, name: str, group: dist.ProcessGroup):
        self.name, self.group = name, group

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, traceback) -> None:
        if error is not None and isinstance(error, RuntimeError):
            raise RuntimeError(f"{self.name}: {_verdict(self.group, error)}") from error


def _timeout(group: dist.ProcessGroup) -> float:
    """Seconds after which the group's collectives fail."""
    backend = group._get_backend(_header_device(group))
    limit = getattr(getattr(backend, "options", None), "_timeout", None)
    return (limit or distributed_c10d.default_pg_timeout).total_seconds()


def _keys(group: dist.ProcessGroup) -> tuple[dist.Store, str]:
    return distributed_c10d._get_default_store(), f"torch_patterns/failed/{group.group_name}"


def _given_up(group: dist.ProcessGroup) -> bool:
    store, prefix = _keys(group)
    return store.check([f"{prefix}/0"])


def _verdict(group: dist.ProcessGroup, error: Exception) -> str:
    """Who is missing. The first rank to ask collects the answers of the others, and they take its word."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    cause = str(error).splitlines()[0][:300]
    try:
        store, prefix = _keys(group)
        store.set(f"{prefix}/rank{rank}", "alive")
        order = store.add(f"{prefix}/asked", 1)
        store.set(f"{prefix}/0", "failed")
        if order == 1:
            missing = [str(r) for r in _unanswered(store, prefix, size)]
            who = f"rank {', '.join(missing)} of {size} did not take part" if missing else "every rank still answers"
            store.set(f"{prefix}/verdict", f"{who} ({cause})")
        store.wait([f"{prefix}/verdict"], timedelta(seconds=4 * ANSWER_WITHIN))
        return store.get(f"{prefix}/verdict").decode()
    except Exception as lost:  # the store is gone with the process that held it
        return f"{cause}; the store, which rank 0 or the launcher holds, does not answer either ({type(lost).__name__})"


def _unanswered(store: dist.Store, prefix: str, size: int) -> list[int]:
    end = time.monotonic() + ANSWER_WITHIN
    missing = list(range(size))
    while missing and time.monotonic() < end:
        missing = [r for r in missing if not store.check([f"{prefix}/rank{r}"])]
        time.sleep(0.05)
    return missing
