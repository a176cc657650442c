"""Draft attention and the Markov head against plain loops."""

import torch

from deepinfer.ops.cases import Maker
from deepinfer.ops.draft_attention import draft_attention
from deepinfer.ops.draft_attention.cases import case as attention_case
from deepinfer.ops.formats import decode_record
from deepinfer.ops.markov_draft import markov_draft
from deepinfer.ops.markov_draft.cases import case as markov_case
from deepinfer.ops.rotation import rotate
from tests.ops.small import SMALL

ANCHORS = [(p, 1) for p in (0, 3, 15, 16, 40, 200)]


def test_every_query_of_a_block_sees_the_window_and_the_whole_block():
    make = Maker(SMALL, quantised=False)
    given_case = attention_case(make, make.batch(ANCHORS))
    given_case["lower"] = torch.tensor([0, 2, 0, 5, 0, 190])
    found = draft_attention.reference(**given_case)
    block = given_case["q"].shape[1]
    for request, anchor in enumerate(given_case["anchors"].tolist()):
        first = max(anchor - SMALL.sliding_window + 1, int(given_case["lower"][request]))
        ring = given_case["ring"][given_case["slots"][request]]
        past = [ring[p % SMALL.ring_rows] for p in range(first, anchor + 1)]
        keys = torch.stack([*past, *given_case["records"][request]])
        keys = decode_record(keys, given_case["record"]).double()
        for place in range(block):
            q = given_case["q"][request, place].double()
            sink = given_case["sink"].double()[:, None]
            scores = torch.cat((q @ keys.T * SMALL.softmax_scale, sink), dim=1)
            expected = (torch.softmax(scores, dim=1)[:, :-1] @ keys).float()
            by = given_case["by"].rows(torch.tensor([request * block + place]))
            expected = rotate(expected[None], by, inverse=True)[0]
            torch.testing.assert_close(found[request, place], expected, rtol=1e-5, atol=2e-6)


def test_the_first_queries_of_a_block_need_no_others():
    make = Maker(SMALL)
    case = attention_case(make, make.batch(ANCHORS))
    whole, block = draft_attention.reference(**case), case["q"].shape[1]
    for count in (1, 3):
        place = torch.arange(len(ANCHORS) * block)
        by = case["by"].rows(place[place % block < count])
        found = draft_attention.reference(**case | {"q": case["q"][:, :count], "by": by})
        assert torch.equal(found, whole[:, :count])


def test_each_draft_follows_from_the_one_before():
    make = Maker(SMALL)
    given_case = markov_case(make, make.batch(ANCHORS))
    found = markov_draft.reference(**given_case)
    weights = given_case["weights"]
    for request, newest in enumerate(given_case["newest"].tolist()):
        previous = newest
        for place in range(found.tokens.shape[1]):
            row = weights.embed[previous].double()
            logits = given_case["base"][request, place].double() + weights.head.double() @ row
            torch.testing.assert_close(
                found.logits[request, place].double(), logits, atol=1e-5, rtol=0
            )
            joined = torch.cat((given_case["hidden"][request, place].double(), row))
            confidence = (weights.confidence.double() @ joined).item()
            assert abs(found.confidence[request, place].item() - confidence) < 1e-5
            previous = int(found.tokens[request, place])
            assert previous == int(found.logits[request, place].argmax())


def test_equal_logits_draft_the_lowest_id():
    make = Maker(SMALL)
    given_case = markov_case(make, make.batch(ANCHORS))
    given_case["base"] = torch.zeros_like(given_case["base"])
    given_case["base"][:, :, [7, 20]] = 1000.0
    flat = given_case["weights"]._replace(head=torch.zeros_like(given_case["weights"].head))
    found = markov_draft.reference(**dict(given_case, weights=flat))
    assert (found.tokens == 7).all()
