"""The state of a DeepSpeed engine with ZeRO, as pieces of whole parameters that any number of workers can read.

With ZeRO a worker has a part of the weights in full precision and of the optimizer's state: of each group of parameters
a flat tensor, in which pieces of parameters follow each other. Stages 1 and 2 flatten a group, and cut it into as many
parts as there are workers. Stage 3 cuts each parameter. Both say where a piece lies: `_hp_mapping` of a parameter, and
its partition, which DeepSpeed's own functions for whole parameters use (`deepspeed.utils.tensor_fragment`).

DeepSpeed's universal checkpoints have whole parameters, too. But they are converted from other files by a program
apart; with stage 3 they have only what Adam has, one set of options for all groups, and fail to load where the workers
have become more (https://github.com/deepspeedai/DeepSpeed/pull/7599). Here the pieces themselves are saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from malletrain.client.flat_ranges import FlatParts
from malletrain.client.replica import plain_state

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_EXPECTED = "expected what deepspeed.initialize has returned first"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a parameter: its place in the parameter and in a flat tensor, in numbers."""

    name: str
    start: int
    length: int
    whole: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Flat:
    """A flat tensor of full precision: the optimizer's parameter, what of it is in use, and its group."""

    tensor: torch.Tensor
    group: int
    pieces: list[_Piece]


def check_engine(engine: Any) -> None:
    """Refuse an engine whose state could not be divided anew.

    Args:
        engine: What `deepspeed.initialize` has returned first.

    Raises:
        ValueError: it is something else, or its configuration has what is not supported.
    """
    if not hasattr(engine, "zero_optimization_stage"):
        raise ValueError(f"engine: {_EXPECTED}, got {type(engine).__name__}")
    stage = int(engine.zero_optimization_stage())
    if stage not in (1, 2, 3):
        advice = "without ZeRO, use malletrain.client.elastic"
        raise ValueError(f"zero_optimization.stage: expected 1, 2 or 3, got {stage} ({advice})")
    if not hasattr(engine.optimizer, "optimizer"):
        raise ValueError("optimizer: expected one that was given to deepspeed.initialize, got none")
    for name, expected, actual, fits in _checks(engine):
        if not fits:
            raise ValueError(f"{name}: expected {expected}, got {actual}")


def _checks(engine: Any) -> Iterator[tuple[str, str, Any, bool]]:
    """Names, what is expected, what was found, and whether that fits."""
    steps = engine.gradient_accumulation_steps()
    yield "gradient_accumulation_steps", "1 (hold_batch accumulates, at any number of workers)", steps, steps == 1
    schedule = engine.lr_scheduler
    advice = "none in deepspeed.initialize; training.register it, and training.step(scheduler.step)"
    yield "lr_scheduler", advice, type(schedule).__name__, schedule is None
    for name, settings in (
        ("offload_optimizer", engine.zero_offload_optimizer()),
        ("offload_param", engine.zero_offload_param()),
    ):
        device = getattr(settings, "device", "none")
        device = str(getattr(device, "value", device))
        fits = device in ("none", "cpu")
        yield f"zero_optimization.{name}.device", "none or cpu: what is on other media is not read back", device, fits
        ratio = float(getattr(settings, "ratio", 1.0))
        yield f"zero_optimization.{name}.ratio", "1.0", ratio, ratio == 1.0
        own = bool(getattr(settings, "super_offload", False))
        yield f"zero_optimization.{name}.super_offload", "false", "true", not own
    yield "zero_optimization.zenflow", "none", "one", not getattr(engine, "zenflow", False)
    pieces = engine.zero_hpz_partition_size()
    yield "zero_optimization.zero_hpz_partition_size", "1", pieces, pieces == 1
    shards = int(getattr(engine._config.zero_config, "mics_shard_size", -1) or -1)
    yield "zero_optimization.mics_shard_size", "none", shards, shards < 1
    yield "managed_gradient_accumulation", "true", "false", _is_managed(engine)
    for name, size in (
        ("tensor_parallel", engine.autotp_size() or 1),
        ("model parallelism", getattr(engine, "mp_world_size", 1)),
        ("sequence parallelism", getattr(engine, "seq_parallel_size", 1)),
    ):
        yield name, "none: workers share samples only", size, size == 1
    yield "model", "none with a mixture of experts", "one", not engine.has_moe_layers
    kind = type(engine).__name__
    yield "engine", "no pipeline", kind, kind != "PipelineEngine"
    scaler = getattr(engine.optimizer, "torch_autocast_gradscaler", None)
    yield "torch_autocast.dtype", "bfloat16: a scaler of float16 there is not saved", "float16", scaler is None


def _is_managed(engine: Any) -> bool:
    asked = getattr(engine, "managed_gradient_accumulation", None)
    return asked is None or bool(asked())


class ZeroState:
    """What one worker has of an engine's state.

    All workers call the methods together.
    """

    def __init__(self, engine: Any) -> None:
        """Look at an engine.

        Args:
            engine: What `deepspeed.initialize` has returned first.

        Raises:
            ValueError: its state can't be divided anew; see `check_engine`.
        """
        check_engine(engine)
        self._engine = engine
        self._zero = engine.optimizer
        self._stage = int(engine.zero_optimization_stage())
        named = plain_state(dict(engine.module.named_parameters()))
        self._named: Mapping[str, Any] = named
        self._names = {id(parameter): name for name, parameter in named.items()}

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that ZeRO makes use of."""
        optimizer: torch.optim.Optimizer = self._zero.optimizer
        return optimizer

    def parts(self) -> FlatParts:
        """This worker's pieces; tensors are those of the engine, to be read or filled in place.

        Raises:
            ValueError: the optimizer has a state that does not belong to single weights.
        """
        parts = FlatParts()
        for flat in self._flats():
            rows = {"weights": flat.tensor.detach(), **self._vectors(flat)}
            for key, row in rows.items():
                for piece in flat.pieces:
                    numbers = row.narrow(0, piece.offset, piece.length)
                    parts.add(f"{key}/{piece.name}", numbers, piece.start, piece.whole)
        for name, parameter in self._named.items():
            if not parameter.requires_grad:
                self._add_frozen(parts, name, parameter)
        for name, buffer in self._buffers().items():
            parts.tensors[f"buffer/{name}"] = buffer
        return parts

    def plain(self) -> dict[str, Any]:
        """What is not divided: options of the groups, numbers of the optimizer, loss scaler, counters."""
        groups: dict[int, dict[str, Any]] = {}
        for flat in self._flats():
            state = self.optimizer.state.get(flat.tensor, {})
            vectors = self._vectors(flat)
            numbers = {key: value for key, value in state.items() if f"optimizer.{key}" not in vectors}
            types = {key: str(state[key].dtype) for key in state.keys() - numbers.keys()}
            if state:
                groups.setdefault(flat.group, {"numbers": numbers, "types": types})
        return {
            "groups": [groups.get(number, {}) for number in range(len(self.optimizer.param_groups))],
            "options": [_without_parameters(group) for group in self.optimizer.param_groups],
            "loss_scaler": _numbers(getattr(self._zero, "loss_scaler", None)),
            "counters": {name: int(getattr(self._engine, name)) for name in _COUNTERS},
        }

    def restore_plain(self, plain: Mapping[str, Any]) -> None:
        """Restore what `plain` has returned, and make the optimizer's tensors, for `parts` to be filled.

        Raises:
            ValueError: the optimizer has another number of groups than the saved one.
        """
        groups = self.optimizer.param_groups
        if len(groups) != len(plain["options"]):
            raise ValueError(f"optimizer: expected {len(plain['options'])} groups of parameters, got {len(groups)}")
        for group, options in zip(groups, plain["options"], strict=True):
            group.update({name: value for name, value in options.items() if name in group})
        for flat in self._flats():
            saved = plain["groups"][flat.group]
            on_device = any(groups[flat.group].get(name) for name in ("capturable", "fused"))
            device = flat.tensor.device if on_device else torch.device("cpu")
            state = {key: _own(value, device) for key, value in saved.get("numbers", {}).items()}
            for key, dtype in saved.get("types", {}).items():
                state[key] = torch.zeros_like(flat.tensor, dtype=_type_of(dtype), requires_grad=False)
            if state:
                self.optimizer.state[flat.tensor] = state
        if self._stage < 3 and any(plain["groups"]):
            # For DeepSpeed's functions of whole parameters, which know the state after the first step only.
            self._zero._lazy_init_hp_params_optimizer_state()
        scaler = getattr(self._zero, "loss_scaler", None)
        for name, value in plain["loss_scaler"].items():
            if hasattr(scaler, name):
                setattr(scaler, name, value)
        for name, value in plain["counters"].items():
            setattr(self._engine, name, value)

    def refresh(self) -> None:
        """Give the model the weights of full precision, after they have been filled. As at the end of a step."""
        with torch.no_grad():
            if self._stage < 3:
                self._zero.update_lp_params()
                return
            self._zero.checkpoint_event_prologue()
            for number in range(len(self._zero.fp16_groups)):
                self._zero._reassign_or_swap_out_partitioned_parameters(number)
            self._zero.checkpoint_event_epilogue()

    def _flats(self) -> Iterator[_Flat]:
        zero = self._zero
        if self._stage == 3:
            rows = zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True)
            for number, (parameters, flat) in enumerate(rows):
                yield _Flat(flat, zero.sub_group_to_group_id[number], self._partitions(parameters))
            return
        in_bfloat16 = hasattr(zero, "bf16_groups")
        groups = zero.bf16_groups if in_bfloat16 else zero.bit16_groups
        flats = zero.fp32_groups_flat_partition if in_bfloat16 else zero.single_partition_of_fp32_groups
        for number, (parameters, flat) in enumerate(zip(groups, flats, strict=True)):
            yield _Flat(flat, number, self._fragments(parameters))

    def _fragments(self, parameters: list[Any]) -> list[_Piece]:
        """Pieces of stages 1 and 2."""
        pieces = []
        for parameter in parameters:
            mapping = parameter._hp_mapping
            if mapping is not None:
                place, row = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
                name = self._names[id(parameter)]
                pieces.append(_Piece(name, place.start, place.numel, parameter.numel(), row.start))
        return pieces

    def _partitions(self, parameters: list[Any]) -> list[_Piece]:
        """Pieces of stage 3: each parameter is cut into equal ones, of which the last are filled up."""
        pieces, offset = [], 0
        for parameter in parameters:
            start, length = self._partition(parameter)
            pieces.append(_Piece(self._names[id(parameter)], start, length, parameter.ds_numel, offset))
            offset += parameter.partition_numel()
        return pieces

    def _partition(self, parameter: Any) -> tuple[int, int]:
        size = parameter.partition_numel()
        start = min(size * dist.get_rank(parameter.ds_process_group), parameter.ds_numel)
        return start, min(size, parameter.ds_numel - start)

    def _vectors(self, flat: _Flat) -> dict[str, torch.Tensor]:
        """The optimizer's tensors with a number for each weight."""
        vectors = {}
        for key, value in self.optimizer.state.get(flat.tensor, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == flat.tensor.shape:
                vectors[f"optimizer.{key}"] = value
            elif isinstance(value, torch.Tensor) and value.numel() != 1:
                kind = type(self.optimizer).__name__
                expected = "expected one number, or one for each weight"
                raise ValueError(f"optimizer: {expected}, got {tuple(value.shape)} as {key} of {kind}")
        return vectors

    def _add_frozen(self, parts: FlatParts, name: str, parameter: Any) -> None:
        if self._stage < 3:
            parts.tensors[f"frozen/{name}"] = parameter.detach()
            return
        start, length = self._partition(parameter)
        own = parameter.ds_tensor.detach().view(-1).narrow(0, 0, length)
        parts.add(f"frozen/{name}", own, start, parameter.ds_numel)

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Buffers that are part of the model's state; those of one worker count."""
        kept = plain_state(self._engine.module.state_dict()).keys()
        buffers = plain_state(dict(self._engine.module.named_buffers()))
        return {name: buffer for name, buffer in buffers.items() if name in kept}


def _without_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _numbers(thing: Any) -> dict[str, Any]:
    """Attributes that are numbers: a loss scaler of DeepSpeed has no others that change."""
    return {name: value for name, value in vars(thing or object).items() if type(value) in (int, float)}


def _own(value: Any, device: torch.device) -> Any:
    return value.clone().to(device) if isinstance(value, torch.Tensor) else value


def _type_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype
