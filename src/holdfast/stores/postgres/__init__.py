"""The PostgreSQL store: statements, migrations and the drivers that run them."""
