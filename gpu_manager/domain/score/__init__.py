"""Which node of a cluster should take a pod: the one that loses the least room for those still to come.

``shapes``   what pods ask for, and how often each was asked for so far
``waste``    how much of a node's free cards that mix of requests could not use (needs numpy)
``places``   what it costs that a request for several cards finds one node less that could hold it
``scorer``   the cost of putting a pod on a node, from all of these

Pure, and for whoever sees a whole cluster: admission, the simulator, the bench. The agent never loads it.
docs/placement.md has the formula and what each term brings, measured.
"""
