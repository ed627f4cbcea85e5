"""Small runs, each aimed at one kind of bug. Without a planted bug none finds a violation."""
