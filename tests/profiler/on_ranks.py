"""Run under torchrun: `compare NAME...` or `profile ARGUMENTS`.

The first holds each of `quick`'s models, split over the ranks, against itself whole: the first rank prints how far
their outputs are apart in float64. The second is the command, on a machine that need not be measured.
"""

import json
import os
import sys

import torch
from quick import HIDDEN, MACHINE, prompt, request

from kvcalc.cli.app import main
from kvcalc.profiler import course, device
from kvcalc.profiler.ranks import ranks_of
from kvcalc.reference.build import Rank
from kvcalc.reference.model import ReferenceModel, RunOptions
from kvcalc.reference.session import Session

TOKENS, BATCH = 20, 2


def outputs(name, rank):
    """Hidden states of a prefill and of two decode steps, in float64."""
    asked = request(name)
    model = ReferenceModel(asked.spec, asked.workload, RunOptions(rank=rank, exact=torch.float64))
    encoded = torch.rand(BATCH, 20, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    longest = max(part.reference.encoder_tokens for part in model.parts)
    session, ids = Session(model, BATCH, TOKENS, encoded=encoded if longest else None), prompt(BATCH, TOKENS)
    passes = [session.prefill(ids[:, :18]), session.decode(ids[:, 18:19]), session.decode(ids[:, 19:])]
    return torch.cat(passes, dim=1)


def distance(name, ranks):
    """The largest difference on any rank between the split model's outputs and the whole model's."""
    return max(ranks.gather((outputs(name, ranks.rank) - outputs(name, Rank())).abs().max().item()))


def compare(names):
    """Print the distance of every model as JSON."""
    with ranks_of(int(os.environ["WORLD_SIZE"]), "cpu") as ranks:
        found = {name: distance(name, ranks) for name in names}
    if ranks.is_first:
        print(json.dumps(found))


def profile(arguments):
    """kvcalc profile on a machine whose peaks are stated."""
    course.measure_machine = lambda *_: dict(MACHINE)
    device.EVICTING_BYTES = 4096
    sys.exit(main(["profile", *arguments]))


if __name__ == "__main__":
    {"compare": compare, "profile": profile}[sys.argv[1]](sys.argv[2:])
