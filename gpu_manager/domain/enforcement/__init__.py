"""How a share of a card is held: evasion, time sharing, driver overhead, messages of the library."""
