# The first lines that the shell reads. It is an interactive one, because only those survive an interrupt with all they know;
# these lines take away what makes it talk.
PS1= PS2= PROMPT_COMMAND=
unset HISTFILE MAILCHECK
set +o history +o histexpand +o monitor
printf 'ready\n' >&0
