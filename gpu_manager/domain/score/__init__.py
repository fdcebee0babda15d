"""Node scores: the best node for a pod loses the least room for later requests.

``request_mix``      the shapes of requests, and how often each was requested so far
``fragmentation``    how much of a node's free cards that mix of requests cannot use (needs numpy)
``multi_gpu_slots``  the cost of one node less that could hold a request for several cards, and the nodes that
                     smaller requests avoid while such requests wait
``closing``          the one of them that smaller requests are refused on, and for how long at most
``scorer``           the cost of putting a pod on a node, from all of these

Used by admission, the simulator and the bench; the agent never loads it. docs/internals has the formula
(node-choice.md) and the measured effect of each term (placement-study.md).
"""
