// Package cli is gantry's command line: one file per subcommand. Results go to
// the standard output, everything else to the standard error. What scripts may
// rely on, exit codes above all, is the same for every command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/vfs"
)

// Exit codes that scripts rely on.
const (
	exitOK     = 0 // done, nothing wrong
	exitFound  = 1 // done, and something was found, or was not found
	exitUsage  = 2
	exitFailed = 3 // could not run
)

// exitError ends a command with a code. A nil err ends it silently: what there
// was to say has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// found ends a command that is done and found something, or nothing.
func found() error { return &exitError{code: exitFound} }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// failed makes err the reason why a command could not run, whatever it wraps.
func failed(err error) error {
	var exit *exitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return &exitError{exitFailed, err}
}

// app is what all commands share. The tests replace clock and file system.
type app struct {
	*console
	stdin io.Reader
	now   func() time.Time // its zone is that of all times printed
	fs    vfs.FS           // of store directories

	json    bool
	verbose bool
	config  string
	set     []string
}

// Main runs the command line and returns the exit code. Cancelling ctx stops
// the command cleanly: what was printed are complete lines.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{console: newConsole(stdout, stderr), stdin: stdin, now: time.Now, fs: vfs.OS()}
	return a.main(ctx, args)
}

func (a *app) main(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(timesAsArguments(root, args))
	root.SetIn(a.stdin)
	root.SetOut(a.console)
	root.SetErr(a.errors())
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = failed(a.writeError())
	}
	if err == nil {
		return exitOK
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		// Cobra's own errors are about usage; ours say what they are.
		exit = &exitError{exitUsage, err}
	}
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		a.note("interrupted")
	case exit.err != nil:
		a.note("%v", exit.err)
	}
	if exit.code == exitUsage {
		fmt.Fprintf(a.errors(), "usage: %s\nMore with: %s --help\n", cmd.UseLine(), cmd.CommandPath())
	}
	return exit.code
}

// timesAsArguments lets a time like -2h be an argument of offset: it is put
// behind the mark that ends the flags. As the value of a flag it needs no help.
func timesAsArguments(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Name() != offsetName || slices.Contains(args, "--") {
		return args
	}
	at := slices.IndexFunc(args, func(s string) bool { return len(s) > 1 && s[0] == '-' && s[1] >= '0' && s[1] <= '9' })
	if at < 0 {
		return args
	}
	return append(slices.Delete(slices.Clone(args), at, at+1), "--", args[at])
}

func (a *app) root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gantry",
		Short: "Apache RocketMQ's message store in Go",
		Long: `Gantry keeps messages in the files of Apache RocketMQ, without a JVM.

Exit codes: 0 done, nothing wrong; 1 done, and something was found or not
found; 2 wrong usage; 3 could not run.`,
		Example:       "  gantry store put ./data Orders --key order-4711 --body hello\n  gantry store query ./data Orders order-4711",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
	}
	cmd.SetVersionTemplate("gantry {{.Version}}\n")
	f := cmd.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print one JSON object per line")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "log what happens to the standard error")
	f.StringVar(&a.config, "config", "", "a Java broker.conf or .properties `file`")
	f.StringArrayVar(&a.set, "set", nil, "a property as `KEY=VALUE`, under RocketMQ's name; beats --config; repeatable")
	_ = cmd.MarkPersistentFlagFilename("config", "conf", "properties") // the flag exists
	cmd.SetHelpCommand(helpCommand())
	return group(cmd, a.serve(), a.namesrv(), a.broker(), a.send(), a.receive(), a.query(), a.store(), a.man())
}

// group makes cmd the parent of others: alone it prints its help.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
			hint = fmt.Sprintf(", did you mean %q?", like[0])
		}
		return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), hint)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]...",
		Short: "Print the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("no command %q", strings.Join(args, " "))
			}
			return of.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) (names []string, _ cobra.ShellCompDirective) {
			if of, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, c := range of.Commands() {
					if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), prefix) {
						names = append(names, c.Name()+"\t"+c.Short)
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// arguments wants the named arguments; those in brackets may be left out. The
// first one is a directory, for whoever completes it.
func arguments(cmd *cobra.Command, names ...string) {
	cmd.Use = cmd.Use + " " + strings.Join(names, " ")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch i := len(args); {
		case i < len(names) && names[i][0] != '[':
			return fmt.Errorf("%s is missing", strings.Trim(names[i], "[]"))
		case i > len(names):
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		case args[0] == "":
			return fmt.Errorf("%s is empty", names[0]) // an unset variable, not the current directory
		}
		return nil
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// run wraps a command's function: errors that are not about usage say whether
// the command could not run, or ran and found damage or nothing.
func run(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := f(cmd.Context(), args)
		var exit *exitError
		if errors.As(err, &exit) || !errors.Is(err, gantry.ErrNotFound) && !errors.Is(err, gantry.ErrCorrupt) {
			return failed(err)
		}
		return &exitError{exitFound, err}
	}
}

// version is that of the module, as the build recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
