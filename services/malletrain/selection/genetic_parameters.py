"""Parameters of the genetic algorithm (Fan et al., HPDC 2019, §3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError

_MAX_POPULATION = 10_000
_MAX_GENERATIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class GeneticParameters:
    """Parameters of the genetic algorithm.

    Attributes:
        population: Chromosomes, at least 2.
        generations: Generations, at least 0.
        mutation: Probability that a gene of a child flips, 0 to 1.
        seed: Seed of the random numbers, at least 0.

    Raises:
        InvalidInputError: a parameter is out of its range.
    """

    population: int = 20
    generations: int = 500
    mutation: float = 0.0005
    seed: int = 0

    def __post_init__(self) -> None:
        for field, least, most in (
            ("population", 2, _MAX_POPULATION),
            ("generations", 0, _MAX_GENERATIONS),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidInputError(field, f"a whole number from {least} to {most}", value)
        if not 0 <= self.mutation <= 1:
            raise InvalidInputError("mutation", "a probability from 0 to 1", self.mutation)
