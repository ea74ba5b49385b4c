"""Schema: column types, migrations, and what differs from them."""
