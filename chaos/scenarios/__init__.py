"""Small plays, each aimed at one way to go wrong. Without a planted bug none finds anything."""
