"""Seconds to evaluate the sequence rung over the full catalogue, after loading: must show under 5 s on ML-1M.

`python benchmarks/evaluate_sequence.py EVENTS` splits by leave-one-out (every user is a test user), trains
for a few steps only, since quality does not matter here, and times `Recommender.evaluate`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time

import torch

import rootbeam as rb
from rootbeam.core.config import SequenceTraining


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    parts = rb.split(rb.read_events(given.events), by="leave-one-out")
    training = SequenceTraining(epochs=1, least_steps=1, validations=1)
    config = dataclasses.replace(rb.Config(), training=training)
    recommender = rb.Recommender(config).fit(parts.train, parts.valid, model="sequence")
    seconds = []
    for _ in range(given.repetitions):
        start = time.perf_counter()
        found = recommender.evaluate(parts.test)
        seconds.append(round(time.perf_counter() - start, 2))
    print(
        json.dumps(
            {
                "events": given.events,
                "users": found.users,
                "items": len(recommender.model.items),
                "seconds": seconds,
            }
        )
    )


if __name__ == "__main__":
    main()
