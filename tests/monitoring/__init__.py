"""What watches a running system by its metrics: alerts and a dashboard, made from the catalogue."""
