"""Executor registry (S2): executors find the cluster by heartbeats, and the cluster picks the right one.

`registrar` takes heartbeats and goodbyes (S2's OpenApiController behind `POST /api/registry`), `reaper` is the leader's
duty that removes who is silent and refreshes the groups (S2's JobRegistryHelper), `directory` shows who is there, and
`router` picks. `address_check` decides who may register, `node_listeners` which addresses no executor may have,
and `host_lookups` asks the name service. The executor's side (S2's ExecutorRegistryThread) is `orchestrix.Executor`.
"""
