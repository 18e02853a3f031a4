"""Ensembles for tests: one whose answers were computed by hand, and drawn ones."""

from __future__ import annotations

from hypothesis import strategies as st

from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetProblem, Pace, RateTolerance

BY_HAND = FleetProblem(
    models=(
        EnsembleModel("a", (60.0, 110.0), 1),
        EnsembleModel("b", (30.0, 60.0, 90.0), 2),
        EnsembleModel("c", (10.0, 20.0), 1),
    ),
    gpus=3,
    gpus_per_node=2,
    samples_per_epoch=600.0,
    checkpoint_seconds=5.0,
)
"""Three GPUs on two nodes; `a` scales by 11/12 per GPU beyond two, `b` and `c` linearly."""


def models(most: int = 6) -> st.SearchStrategy[tuple[EnsembleModel, ...]]:
    # Whole rates and fractions of them: ties are frequent.
    rate = st.integers(1, 400).map(lambda value: value / 2)
    one = st.tuples(st.lists(rate, min_size=1, max_size=6), st.integers(1, 5))
    return st.lists(one, min_size=1, max_size=most).map(
        lambda found: tuple(EnsembleModel(f"m{i}", tuple(rates), epochs) for i, (rates, epochs) in enumerate(found))
    )


def problems(max_models: int = 6, max_gpus: int = 14) -> st.SearchStrategy[FleetProblem]:
    return st.builds(
        FleetProblem,
        models=models(max_models),
        gpus=st.integers(1, max_gpus),
        gpus_per_node=st.integers(1, 4),
        samples_per_epoch=st.sampled_from((100.0, 1000.0)),
        tolerance=st.one_of(
            st.integers(0, 60).map(lambda value: RateTolerance(float(value))),
            st.sampled_from((0.05, 0.11, 0.5)).map(lambda share: RateTolerance(share=share)),
        ),
        active_share=st.sampled_from((0.0, 0.5, 0.8, 1.0)),
        checkpoint_seconds=st.sampled_from((0.0, 3.0)),
        preprocess_rate=st.sampled_from((0.0, 20.0, 150.0)),
        pace=st.sampled_from(Pace),
        beyond_peak=st.sampled_from(BeyondPeak),
    )
