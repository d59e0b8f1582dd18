"""What ran when: GPU work, the calls that issued it, and the chains of host work behind them."""
