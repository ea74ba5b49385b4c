"""Election tokens: the wire format of the messages in the leader's queue."""

from __future__ import annotations

from orchestrix import clock
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import LEADER
from orchestrix.domain.leases import INITIAL_TOKEN, LeaderToken
from orchestrix.saga.messages import UnreadableMessage, dump, load


def token_message(token: LeaderToken) -> Outgoing:
    """The token, as it is put into the queue."""
    body = dump({"term": token.term, "nodeId": token.node_id})
    return Outgoing(exchange="", routing_key=LEADER, body=body, message_id=clock.uuid7(), type="leader.token")


def read_token(body: bytes) -> LeaderToken:
    """The token in a message. One that cannot be read counts as the oldest: worth a campaign, no reason to give way."""
    try:
        fields = load(body)
    except UnreadableMessage:
        return INITIAL_TOKEN
    term, node_id = fields.get("term"), fields.get("nodeId")
    if isinstance(term, bool) or not isinstance(term, int) or not isinstance(node_id, str):
        return INITIAL_TOKEN
    return LeaderToken(term, node_id)
