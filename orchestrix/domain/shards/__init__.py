"""How are the shards of a service divided among its members, without two of them ever having the same one?

A service has members and a number of shards. Each change of these begins a *generation* (S4), which is pending while
others may join it, and then active: its *shares* are the target, whatever members still run. What a member really has
is its *grants*: what was free of its share, and what it has not yet let go of beyond it. A shard is granted only while
no other member has it, so members converge on the target one by one, as in Kafka's KIP-848, and those whose share stays
the same never notice. Each grant has an *epoch*, by which stores of the user's own can refuse a
former holder: it rises whenever a shard is granted.

A shard becomes free when its member
- leaves, or
- was silent for the heartbeat time-out; members of the SDK have stopped by then, for their lease is two thirds of it
  and counts from before the sending of the last answered heartbeat; so an answer must not be sent before the heartbeat
  that it answers is stored, or
- acknowledges the active generation without reporting the shard; a member that knows no generations (S1's own client)
  must leave it out of two heartbeats in a row instead.

`service.apply` is the one way from a state to the next; all else here serves it. There is no I/O, no clock and no
randomness: nodes store each state, and any node may compute the next one from what is stored.
"""
