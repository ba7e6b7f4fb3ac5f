//go:build interop

package sqlfilter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ask runs Java with the filter module of a RocketMQ version and returns the
// answers to the questions, see java/Oracle.java.
func ask(ctx context.Context, version string, questions []string) ([]string, error) {
	jars, err := fetch(ctx, version)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "java", "-Xmx512m", "-cp", filepath.Join(jars, "*"), filepath.Join("java", "Oracle.java"))
	cmd.Stdin = strings.NewReader(strings.Join(questions, "\n") + "\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("oracle %s: %w\n%s", version, err, stderr.String())
	}
	answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(answers) != len(questions) {
		return nil, fmt.Errorf("oracle %s: %d answers to %d questions\n%s", version, len(answers), len(questions), stderr.String())
	}
	return answers, nil
}

// fetch returns a directory with the jars of a version. It is filled under
// another name first, so that one of that name is complete.
func fetch(ctx context.Context, version string) (string, error) {
	cache := os.Getenv("GANTRY_INTEROP_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		cache = filepath.Join(dir, "gantry", "interop")
	}
	pom := filepath.Join("java", "pom.xml")
	text, err := os.ReadFile(pom)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	dir := filepath.Join(cache, "sqlfilter-"+version+"-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, "sqlfilter.tmp-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	out, err := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", pom, "-Drocketmq.version="+version,
		"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+tmp).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("fetch rocketmq-filter %s: %w\n%s", version, err, out)
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr != nil {
			return "", err
		}
	}
	return dir, nil
}
