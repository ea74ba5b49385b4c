"""What does a process count and measure, and how is that exposed?

`catalogue` names every metric. Modules get the instruments of theirs from `instruments` and bind the values of labels
once: what is counted for each message is one addition. `exposition` renders them for a scrape, `otlp` sends them.
"""
