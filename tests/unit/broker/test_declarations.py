"""Is what a broker refuses said in a length that a person reads?"""

from __future__ import annotations

from orchestrix.broker.amqp.declarations import _shortened

REFUSED = "binding of {} to orchestrator.events: ACCESS_REFUSED - access to queue '{}' refused for user 'ops'"
OTHER = "queue {}: PRECONDITION_FAILED - inequivalent arg 'x-queue-type'"


def test_of_many_refused_rights_one_is_named_and_all_other_complaints() -> None:
    refused = [REFUSED.format(name, name) for name in ("a", "b", "c")]
    others = [OTHER.format(name) for name in ("d", "e")]
    found = list(_shortened([others[0], *refused, others[1]]))
    assert found == [others[0], refused[0], others[1], "2 more that the user has no right to"]
    assert list(_shortened([*others, refused[0]])) == [*others, refused[0]]
