"""Scales at which a job may run."""

from malletrain.model.scaling import permitted_scales


def test_every_scale_between_the_bounds_is_permitted() -> None:
    assert list(permitted_scales(2, 5)) == [2, 3, 4, 5]


def test_a_list_of_scales_wins_over_the_bounds() -> None:
    assert list(permitted_scales(1, 8, (1, 4, 8))) == [1, 4, 8]
