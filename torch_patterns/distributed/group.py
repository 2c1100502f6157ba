"""Calls that all ranks of a group make together: checks that their arguments agree and that every rank takes part.

Every function of this package makes a :class:`Call`. Its message, of the same length in every call of every function,
tells all ranks a digest of this rank's arguments and the length of its shard. So a rank with other arguments, or with
an error, is named on every rank before any collective whose size depends on the arguments. A few bytes of results, such
as the total of a shard, travel in the same message. If a rank does not take part at all, the others agree, through the
store of the default group, which one is missing.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from torch_patterns.arguments import refuse

Group = dist.ProcessGroup | dist.DeviceMesh | None

all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.11 has the older name

NUMBERS = 4  # int64 words of a header that a function may use
HEADER_WORDS = NUMBERS + 3  # then whether the rank raised an error, and a digest of its arguments
MESSAGE_WORDS = 64  # a header and its payload: so short that only the latency of a collective counts
RAISED = NUMBERS
TEXT_BYTES = 1024  # of a rank's arguments, as printed when ranks disagree

LOOK_AROUND = timedelta(seconds=0.5)  # how often a waiting rank checks whether another has given up
ANSWER_WITHIN = 5.0  # seconds within which every living rank notices that another has given up: ten times that


def resolve(group: Group) -> dist.ProcessGroup:
    """Returns the process group that ``group`` means: None is the world, and a one-dimensional DeviceMesh has one.

    Raises:
        RuntimeError: ``torch.distributed`` has not been initialized.
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
    """Describes what must be the same for the shards of all ranks: all except length and device index."""
    gradient = ", requires_grad" if x.requires_grad and torch.is_grad_enabled() else ""
    shape = ", ".join(["n", *map(str, x.shape[1:])]) if x.dim() else ""
    return f"{str(x.dtype).removeprefix('torch.')}[{shape}] on {x.device.type}{gradient}"


def shards(name: str, **tensors: Tensor) -> dict[str, Tensor]:
    """Returns the tensors by name; ValueError if one is a scalar, which cannot be sharded, TypeError if it is no
    tensor."""
    for what, x in tensors.items():
        refuse(name, what, x, "Tensor")
        if x.dim() == 0:
            raise ValueError(f"{name}: {what} is a scalar; a shard has a dimension to be sharded along")
    return tensors


def _header_device(group: dist.ProcessGroup) -> torch.device:
    """Returns the device where headers are gathered: the CPU if the group supports it, so that no rank waits for a
    GPU."""
    kinds = {device.type for device in group._device_types}
    return torch.device("cpu") if "cpu" in kinds else torch.device("cuda", torch.cuda.current_device())


class Call:
    """One call that every rank of the group makes.

    The message is sent while the caller continues. :meth:`numbers` waits for it, and raises on every rank if the ranks
    disagree. A function calls :meth:`numbers` before it starts a collective whose size depends on its arguments, and
    before it returns.

    Args:
        name: the name of the function.
        group: as for :func:`resolve`.
        prepare: checks this rank's arguments without reading the contents of tensors, and returns the shards by name.
            If it raises, the error is raised on this rank after all ranks have been told. It may start local work,
            which then runs on the device while the host assembles the message.
        numbers: up to NUMBERS integers that may differ from rank to rank; by default the lengths of the shards.
        gathers: the message is not sent before :meth:`gather` gets its tensor.
        options: must be the same on every rank. Each is a value, or a function without arguments that returns one and
            is called after ``prepare``, so that all ranks learn of what it raises.

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
        gathers: bool = False,
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
            self._text = self._described(options)
            numbers = [len(x) for x in self.shards.values()] if numbers is None else numbers
        except Exception as error:  # every other rank must learn of any error
            self._error, self._text, numbers = error, f"{type(error).__name__}: {error}", ()
        self._header = self._words(numbers)
        self._message: Message | None = None
        if not gathers or self._error is not None:
            self._send()
        if self._error is not None:
            self.numbers()

    def _check_devices(self) -> None:
        served = {device.type for device in self.group._device_types}
        for name, x in self.shards.items():
            if x.device.type not in served:
                raise RuntimeError(
                    f"{self.name}: {name} is on {x.device}, and the group serves {', '.join(sorted(served))}"
                )

    def _described(self, options: dict) -> str:
        parts = [f"{name}: {describe(x)}" for name, x in self.shards.items()]
        parts += [f"{name}={value() if callable(value) else value!r}" for name, value in options.items()]
        return f"{self.name}({', '.join(parts)})"

    def _words(self, numbers: Sequence[int]) -> list[int]:
        digest = hashlib.blake2b(self._text.encode(), digest_size=16).digest()
        digest = [int.from_bytes(digest[i : i + 8], "little", signed=True) for i in (0, 8)]
        return [*numbers, *(0 for _ in range(NUMBERS - len(numbers))), int(self._error is not None), *digest]

    def _send(self, goes_along: Tensor | None = None) -> Message:
        with failures_named(self.name, self.group):
            self._message = Message(self._header, goes_along, self.name, self.group)
        return self._message

    def gather(self, x: Tensor) -> Tensor:
        """Returns [ranks, *x.shape]: the ``x`` of every rank; not differentiable.

        ``x`` is sent with the header if it fits. The result is then valid only if :meth:`numbers`, which the caller may
        call later, does not raise.
        """
        bits = as_bytes(x.detach().contiguous())
        fits = bits.numel() <= Message.ROOM and x.device.type == _header_device(self.group).type
        if self._message is None:
            message = self._send(bits if fits else None)
            if fits:
                return message.carried(bits.numel()).view(x.dtype).view(self.size, *x.shape)
        self.numbers()
        return gather_rows(x, self.group)

    def numbers(self) -> list[list[int]]:
        """Returns the numbers of every rank, [rank][which]; waits for all ranks.

        Raises: Exception: the error of this rank's arguments. RuntimeError: another rank raised, was called with other
            arguments, or did not take part; it is named.
        """
        if self._numbers is None:
            headers = (self._message or self._send()).headers()
            if any(row[RAISED] for row in headers) or len({tuple(row[RAISED:]) for row in headers}) > 1:
                self._disagree([bool(row[RAISED]) for row in headers])
            self._numbers = [row[:NUMBERS] for row in headers]
        return self._numbers

    def lengths(self, which: int = 0) -> list[int]:
        """Returns one of the numbers, for every rank."""
        return [row[which] for row in self.numbers()]

    def _disagree(self, raised: list[bool]) -> None:
        """Sends each rank's arguments to all ranks, and raises."""
        text = self._text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(_header_device(self.group))
        texts = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in gather_rows(mine, self.group).tolist()]
        if self._error is not None:
            raise self._error
        if any(raised):
            told = [f"rank {rank} raised {texts[rank]}" for rank in range(self.size) if raised[rank]]
            raise RuntimeError(f"{self.name}: {'; '.join(told)}")
        said: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            said.setdefault(text, []).append(rank)
        listed = "; ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in said.items())
        raise RuntimeError(f"{self.name}: the ranks were called with different arguments: {listed}")


class Message:
    """A running all_gather of a header and up to ROOM bytes of payload.

    On CUDA the host does not wait until it asks for the headers. These are copied on their own stream, because the
    current stream has other work by then.
    """

    ROOM = 8 * (MESSAGE_WORDS - HEADER_WORDS)

    def __init__(self, header: list[int], goes_along: Tensor | None, name: str, group: dist.ProcessGroup):
        self._name, self._group = name, group
        device = _header_device(group)
        self._mine = on_device(header + [0] * (MESSAGE_WORDS - HEADER_WORDS), device)
        if goes_along is not None:
            self._mine.view(torch.uint8)[8 * HEADER_WORDS :][: goes_along.numel()].copy_(goes_along)
        self._every = self._mine.new_empty(dist.get_world_size(group), MESSAGE_WORDS)
        self._work = all_gather_single(self._every.view(-1), self._mine, group=group, async_op=True)

    def carried(self, size: int) -> Tensor:
        """Returns the payload of every rank's header: uint8 [ranks, size]."""
        finish(self._work, self._every, self._name, self._group)
        return self._every.view(torch.uint8)[:, 8 * HEADER_WORDS :][:, :size].contiguous()

    def headers(self) -> list[list[int]]:
        """Waits for the headers of all ranks and returns them."""
        if not self._every.is_cuda:
            finish(self._work, self._every, self._name, self._group)
            return self._every[:, :HEADER_WORDS].tolist()
        give_up = time.monotonic() + 0.8 * _timeout(self._group)  # because at its time-out NCCL ends the process
        look = time.monotonic() + LOOK_AROUND.total_seconds()
        on_host, arrived = (
            torch.empty(self._every.shape, dtype=torch.int64, device="cpu", pin_memory=True),
            torch.cuda.Event(),
        )
        with failures_named(self._name, self._group):
            with torch.cuda.stream(_side_stream(self._every.device)):
                self._work.wait()
                on_host.copy_(self._every, non_blocking=True)
                arrived.record()
            while not arrived.query():
                if time.monotonic() > look:
                    if _given_up(self._group) or time.monotonic() > give_up:
                        raise RuntimeError(f"no header within {0.8 * _timeout(self._group):g} s")
                    look = time.monotonic() + LOOK_AROUND.total_seconds()
        return on_host[:, :HEADER_WORDS].tolist()


def as_bytes(x: Tensor) -> Tensor:
    """The bytes of contiguous ``x``, one-dimensional, sharing memory.

    One element is contiguous whatever its stride, 0 if it was expanded; as bytes only a stride of 1 will do.
    """
    return x.view(-1).as_strided((x.numel(),), (1,)).view(torch.uint8)


def on_device(values: Sequence, device: torch.device) -> Tensor:
    """Copies values to a device as int64; the host does not wait."""
    x = torch.tensor(values, dtype=torch.int64, device="cpu")
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


def gather_rows(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Returns [ranks, *x.shape]: the ``x`` of every rank, all of one shape; not differentiable."""
    flat = x.detach().reshape(1, -1).contiguous()
    every = flat.new_empty(dist.get_world_size(group), flat.shape[1])
    if flat.numel():
        sent, received = as_bytes(flat), as_bytes(every)
        finish(all_gather_single(received, sent, group=group, async_op=True), received, "all_gather", group)
    return every.view(len(every), *x.shape)


@functools.lru_cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def finish(work: dist.Work, result: Tensor, name: str, group: dist.ProcessGroup) -> None:
    """Waits for a collective: on CUDA the current stream waits; on the CPU the host does, and checks for failures."""
    with failures_named(name, group):
        if result.is_cuda:
            work.wait()
            return
        while not work.is_completed():
            try:
                work.wait(LOOK_AROUND)
            except RuntimeError as error:
                if work.is_completed():
                    break  # it is complete, or failed: then the last wait raises its error
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
    """Returns the seconds after which the group's collectives fail."""
    backend = group._get_backend(_header_device(group))
    limit = getattr(getattr(backend, "options", None), "_timeout", None)
    return (limit or distributed_c10d.default_pg_timeout).total_seconds()


def _keys(group: dist.ProcessGroup) -> tuple[dist.Store, str]:
    return distributed_c10d._get_default_store(), f"torch_patterns/failed/{group.group_name}"


def _given_up(group: dist.ProcessGroup) -> bool:
    store, prefix = _keys(group)
    return store.check([f"{prefix}/0"])


def _verdict(group: dist.ProcessGroup, error: Exception) -> str:
    """Tells which ranks are missing. The first rank to ask collects the answers of the others, which adopt its
    verdict."""
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
    except Exception as lost:  # the store ended with the process that held it
        return f"{cause}; the store, which rank 0 or the launcher holds, does not answer either ({type(lost).__name__})"


def _unanswered(store: dist.Store, prefix: str, size: int) -> list[int]:
    end = time.monotonic() + ANSWER_WITHIN
    missing = list(range(size))
    while missing and time.monotonic() < end:
        missing = [r for r in missing if not store.check([f"{prefix}/rank{r}"])]
        time.sleep(0.05)
    return missing
