"""Conversions between messages about the value of a job and the dataclasses of `malletrain.model.job_value`."""

from __future__ import annotations

from collections.abc import Iterable

from malletrain.model.goodput import GoodputTerms, GradientNoise, StatisticalEfficiency
from malletrain.model.job_value import LINEAR, LINEAR_VALUE, Deadline, SpeedValue, ValueCurve, ValuePoint
from malletrain.v1 import allocator_pb2, resources_pb2


def value_from_proto(message: resources_pb2.JobSpec) -> SpeedValue:
    """The value that a specification names; not checked."""
    value = message.value
    match value.WhichOneof("form"):
        case "exponent":
            return SpeedValue(ValueCurve(exponent=value.exponent))
        case "points":
            return SpeedValue(ValueCurve(points=_points(value.points.points)))
        case "deadline":
            after = value.deadline.WhichOneof("time") == "seconds_after_submission"
            seconds = value.deadline.seconds_after_submission if after else value.deadline.unix_seconds
            return SpeedValue(deadline=Deadline(seconds, after, value.deadline.urgency))
        case "goodput":
            terms = value.goodput
            return SpeedValue(goodput=GoodputTerms(terms.initial_batch, terms.batch_per_node, terms.noise_scale))
    return LINEAR_VALUE


def value_to_proto(value: SpeedValue) -> resources_pb2.JobValue | None:
    """A value as a message; None: linear."""
    deadline, curve = value.deadline, value.curve
    if deadline is not None:
        message = resources_pb2.Deadline(urgency=deadline.urgency)
        setattr(message, "seconds_after_submission" if deadline.after_submission else "unix_seconds", deadline.seconds)
        return resources_pb2.JobValue(deadline=message)
    if value.goodput is not None:
        return resources_pb2.JobValue(goodput=_goodput_to_proto(value.goodput))
    if curve.points:
        return resources_pb2.JobValue(points=_points_to_proto(curve.points))
    return None if curve.exponent == 1 else resources_pb2.JobValue(exponent=curve.exponent)


def curve_from_proto(message: allocator_pb2.JobDemand) -> ValueCurve:
    """The value curve of a job in a problem; not checked."""
    curve = message.value
    match curve.WhichOneof("form"):
        case "exponent":
            return ValueCurve(exponent=curve.exponent)
        case "points":
            return ValueCurve(points=_points(curve.points.points))
        case "needed":
            return ValueCurve(needed_rate=curve.needed.rate, urgency=curve.needed.urgency)
        case "goodput":
            terms = curve.goodput
            efficiency = StatisticalEfficiency(terms.noise_scale, terms.batch_per_node, terms.initial_batch)
            return ValueCurve(efficiency=efficiency)
    return LINEAR


def curve_to_proto(curve: ValueCurve) -> allocator_pb2.ValueCurve | None:
    """A value curve as a message; None: linear."""
    if curve.linear:
        return None
    if curve.efficiency is not None:
        return allocator_pb2.ValueCurve(goodput=_goodput_to_proto(curve.efficiency))
    if curve.points:
        return allocator_pb2.ValueCurve(points=_points_to_proto(curve.points))
    if curve.needed_rate:
        needed = allocator_pb2.NeededRate(rate=curve.needed_rate, urgency=curve.urgency)
        return allocator_pb2.ValueCurve(needed=needed)
    return allocator_pb2.ValueCurve(exponent=curve.exponent)


def noise_from_proto(message: resources_pb2.GradientNoise) -> GradientNoise:
    """What a training tells of its gradients, as Monitor and Profiler hand it on."""
    return GradientNoise(message.noise_scale, message.batch_per_node)


def _points(points: Iterable[resources_pb2.ValuePoint]) -> tuple[ValuePoint, ...]:
    return tuple(ValuePoint(point.speedup, point.value) for point in points)


def _points_to_proto(points: Iterable[ValuePoint]) -> resources_pb2.ValuePoints:
    return resources_pb2.ValuePoints(
        points=[resources_pb2.ValuePoint(speedup=point.speedup, value=point.value) for point in points]
    )


def _goodput_to_proto(terms: GoodputTerms | StatisticalEfficiency) -> resources_pb2.Goodput:
    return resources_pb2.Goodput(
        initial_batch=terms.initial_batch, batch_per_node=terms.batch_per_node, noise_scale=terms.noise_scale
    )
