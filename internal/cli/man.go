package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// man writes manual pages, for packages: one for each command.
func (a *app) man() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "man",
		Short: "Write manual pages",
		Long: `Writes a manual page for each command into DIR, which is made when it is
missing: gantry.1, gantry-store-verify.1 and so on.`,
		Example: "  gantry man /usr/local/share/man/man1",
		Hidden:  true,
	}
	arguments(cmd, "DIR")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		if err := os.MkdirAll(args[0], 0o755); err != nil {
			return err
		}
		return manPages(ctx, cmd.Root(), args[0])
	})
	return cmd
}

func manPages(ctx context.Context, cmd *cobra.Command, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	name := pageName(cmd) + ".1"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(manPage(cmd)), 0o644); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := manPages(ctx, sub, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage is the page of a command, for man(7).
func manPage(cmd *cobra.Command) string {
	cmd.InitDefaultHelpFlag()
	var b strings.Builder
	name := pageName(cmd)
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"Gantry\"\n", strings.ToUpper(name), "gantry "+version())
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n%s\n", roff(cmd.UseLine()))
	b.WriteString(".SH DESCRIPTION\n")
	for i, par := range strings.Split(strings.TrimSpace(cmd.Long), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		b.WriteString(roff(par) + "\n")
	}
	block := func(title, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", title, roff(text))
		}
	}
	block("OPTIONS", cmd.LocalFlags().FlagUsages())
	block("GLOBAL OPTIONS", cmd.InheritedFlags().FlagUsages())
	block("EXAMPLES", cmd.Example)
	b.WriteString(".SH EXIT STATUS\n0: done, nothing wrong; 1: done, and something was found or not found; 2: wrong usage; 3: could not run.\n")
	var see []string
	if cmd.HasParent() {
		see = append(see, pageName(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			see = append(see, pageName(sub))
		}
	}
	if len(see) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s(1)\n", roff(strings.Join(see, "(1), ")))
	}
	return b.String()
}

// roff escapes text: a dash would become a typographic one, and a line that
// begins with a dot a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
