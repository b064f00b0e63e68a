"""One file per platform. Each holds ``make_plan(order) -> Plan`` and nothing that does I/O."""
