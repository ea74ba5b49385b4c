"""How do the nodes of a cluster agree on who leads, and on who lives?

This is the protocol's paper; the modules of this package do what it says.

**Requirements.** A database with transactions and one clock, and a broker whose queue
`orchestrix.coordinator.leader` gives its messages to one consumer at a time, the next one when that is gone. The queue
is fast and sometimes wrong: in a partitioned broker a consumer can keep a token that it no longer has. The database is
slower and never wrong. So the queue *proposes* a leader, and the database *decides*.

**Terms.** A *node* is one run of one process: a name and a mark of its boot. A *term* is a number; it has one holder
for ever. The *lease row* holds the newest term, its holder, its mode and until when it is leased. A *token*
`{term, nodeId}` is a message in the leader's queue. A *fence* is what a leader's write carries: its term and its id.

**Leadership: the states of a node**

    WAITING ──token, or vacancy──> CAMPAIGNING ──the row is mine──> LEADING ──loss──> (channel closed) WAITING
                                        └──refused, failed, or 5 s have passed──> (channel closed) WAITING

- WAITING: the node consumes the leader's queue with a prefetch of 1, on a connection that does no other work, and polls
  the lease row. A token lets it campaign, and so does *vacancy*: the lease ended a while ago (by the database's clock,
  plus a jitter of its own), or the row still names the node itself, which leads no more (5 s after its loss), or a
  leader without broker while it has one (2 s after its link came up). A node that finds a vacancy and has a broker
  first publishes the initial token `{0, ""}`: the first consumer of the queue then has a second to campaign by token.
  So the election queue stays in order, and a term ends no other that has just begun.
- CAMPAIGNING: in one transaction, with the row locked: `term + 1, holder = me, lease_until = now + lease`, and a row in
  `handovers`. By token it always may; by vacancy only if the row, as it is under the lock, still says so. If the
  outcome of the COMMIT is unknown, the row is read again: the id in it is this boot's, so it shows that.
- LEADING begins with the commit. Then a fresh token is published, and once the broker has confirmed it, the old one is
  acknowledged. So there is a token in the queue at every moment, and its delivery count starts at 0 with each leader.
  A token that names the live term is held, an older one is dropped, any other ends the leadership. Every 5 minutes the
  held one is replaced, for brokers requeue what is held for half an hour. The first write in the term notes in
  `handovers` when it was made.
- The lease is renewed every 10 s and counts, on this node's monotonic clock, from before the renewal was sent.
- Loss: a renewal is refused or does not come through in time; the channel or its connection is closed; the broker
  cancels the subscription; a newer token arrives. Then the fence is taken away, the duties are stopped, the channel is
  closed, which hands the token on, and the node waits at the end of the election queue.
- Leaving: duties are stopped, the row is marked as resigned, the channel is closed. The successor has the token within
  milliseconds. Duties that do not stop are waited for for a quarter of a second; after 3 s more they are abandoned:
  by L2 nothing that they still write counts.

Mode `broker` is that of a leader with a link to the broker, `alone` that of one without. The mode changes from `alone`
to `broker` when the link is there, never back: a leader that loses its link leads no more.

**Membership: the states of a node's row**

    (join) ──> ALIVE ──drain──> DRAINING ──> LEFT
                 └───────────────┴──the leader, fenced──> DEAD

- A node writes its own row, by the database's clock, every 10 s (every second while it has no broker), and publishes
  that on the topic `orchestrix.coordinator.heartbeat`.
- It is dead after 30 s without. Its silence counts from the latest of: its last heartbeat, the leader's first check,
  the end of the leader's own last outage. So no stall of the leader itself, and no outage that hit all nodes, makes
  a node dead.
- It is dead sooner if it is missing: its exclusive queue `orchestrix.node.{nodeId}` is gone, which ends with its
  connection. The leader pings all of them; two returned pings 2 s apart, no heartbeat between them, no other missing at
  the same time, the node once seen by this very connection, and that one older than 20 s.
- A node that finds its row dead, or gone, stops everything that it does here, and joins again as another node.

**Invariants**

- L1  Terms only rise, by one holder each. (One row, locked; a holder is one boot. The next term is above the row's and
      above all of `handovers`, so that a row that was lost, or restored from a backup, begins none again.)
- L2  No write of an old term is committed after a newer one began. (Every leader's write ends with a read of the row
      under a shared lock; beginning a term takes the exclusive lock.)
- L3  Some node leads again after every fault, without an operator, as long as one node reaches the database. (The
      token is a shortcut; the lease alone suffices.)
- L4  An undisturbed leader stays. (Its own token, coming back, is held.)
- M1  Only a current leader declares a death, and never its own; or the next `dev` of a folder that of the last one,
      for it holds the lock that a process has as long as it lives.
- M2  A node that is declared dead while it lives does nothing under its old id from its next heartbeat on; what it
      writes before is refused where it matters, by owner and epoch.

**What goes wrong, and what then**

    fault                               effect                                           bound
    leader killed                       the broker hands the token on                    a campaign: milliseconds
    leader stopped in good order        resigned, then the channel closed                the same
    leader frozen, or cut off           token by the broker's heartbeats, or the lease   20 s, or 30 s + jitter
    ... in the middle of a write        the campaigner waits for its lock, ends its      1 s; 5 s by the server's own
                                        session, or the server does                      limit
    ... resumes                         its writes are refused, it steps down            its next write
    leader's database link dead         it cannot renew and closes the channel           lease
    a node's database link dead         silent, so DEAD; by itself it releases what it   30 s
                                        consumes, for its successors
    token lost (queue deleted)          the broker cancels the subscription; the node    5 s, or the lease
                                        itself, or any node by the lease, begins again
    token held by a hung node           the lease, after an unanswered initial token     30 s + jitter + 2 s
    tokens doubled                      dropped, or one more term                        none
    broker down                         all lose the link; by the lease, mode `alone`    5 s for the former leader
    broker back                         a node with a token or with a link deposes       2 s + jitter
    broker blocked (alarm)              the old token is held until a new one is         none, or each half hour,
                                        confirmed                                        when RabbitMQ requeues it
    the row lost or restored            the next term is above all in `handovers`        a campaign
    the clock set back                  a lease with more than two lengths left is not   two leases
                                        believed, nor a heartbeat in the future
    database down                       no leader; campaigns fail for 5 s each and       until it is back
                                        hand the token on
    answer to COMMIT lost               the row is read again                            campaign limit
    broker nodes cut apart              two believe, one is in the row                   the other's next renewal
    a follower killed                   missing by its queue                             4 s, else 30 s
    several killed at once              by silence alone                                 30 s
    leader and follower killed          the next leader has received both's heartbeats   30 s (several at once)
    broker restarted                    all presence queues gone: several at once,       no node is dead
                                        and the leader's own link is new
    database stopped for minutes        the leader's own outage                          no node is dead
    a node without broker               it sends a heartbeat every second                it lives
    a node frozen for long              DEAD; it finds that out and joins again          its next heartbeat
"""
