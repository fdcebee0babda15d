"""The scheduler extender: filter, prioritize, bind, preemption, leader election, and requeueing of pods."""
