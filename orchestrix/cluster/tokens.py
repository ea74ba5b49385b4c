"""What does a message of the leader's queue look like?"""

from __future__ import annotations

from orchestrix import clock
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import LEADER
from orchestrix.domain.leases import SEED, Token
from orchestrix.saga.messages import Unreadable, dump, load


def token_message(token: Token) -> Outgoing:
    """The token, as it is put into the queue."""
    body = dump({"term": token.term, "nodeId": token.node_id})
    return Outgoing(exchange="", routing_key=LEADER, body=body, message_id=clock.uuid7(), type="leader.token")


def read_token(body: bytes) -> Token:
    """The token in a message. What cannot be read is as old as can be: worth a campaign, no reason to give way."""
    try:
        fields = load(body)
    except Unreadable:
        return SEED
    term, node_id = fields.get("term"), fields.get("nodeId")
    if isinstance(term, bool) or not isinstance(term, int) or not isinstance(node_id, str):
        return SEED
    return Token(term, node_id)
