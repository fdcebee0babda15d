"""The scheduler extender: filter, prioritize, bind, preempt, who leads, and pods scheduled anew."""
