"""Display: what a person sees and is asked on a terminal."""
