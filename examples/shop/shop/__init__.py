"""An online shop: FastAPI, SQLAlchemy, Alembic, and Holdfast for what happens later."""
