"""How do jobs get to workers, and who hears what those say?

The leader sends a job that is due: one transaction writes the attempt and two messages, one for a worker and one for
whichever node will own the job. Owning is a compare-and-set on (owner, owner epoch), and every write about what a
worker has said carries that epoch: of two nodes that believe to own a job, one writes. A message is acknowledged after
the commit that it led to, and never behind the end of its channel, so that what one node could not write the next one
gets.
"""
